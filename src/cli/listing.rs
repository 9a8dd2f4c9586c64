//! Lists, page after page: as a table, or as JSON, one message a line.

use super::common::{Limit, MAX_PAGES};
use super::table::Table;
use super::{Console, Failure, exit};

/// A list to print.
pub struct Listing<const N: usize> {
    /// What is said if there is nothing, such as `no sessions`.
    pub none: &'static str,
    /// The columns of the table.
    pub header: [&'static str; N],
    /// How many are listed.
    pub limit: Limit,
    /// As JSON.
    pub json: bool,
}

impl<const N: usize> Listing<N> {
    /// Prints what `page` gives for a size and the token of the page, until there is no more or it
    /// is enough.
    pub async fn print<T: serde::Serialize>(
        self,
        console: &mut Console<'_>,
        mut page: impl AsyncFnMut(i32, String) -> Result<(Vec<T>, String), tonic::Status>,
        row: impl Fn(T) -> [String; N],
    ) -> Result<u8, Failure> {
        let mut table = Table::new(self.header);
        let (mut there, mut token) = (0, String::new());
        for _ in 0..MAX_PAGES {
            let (items, next) = page(self.limit.page_size(there), token).await?;
            there += items.len();
            for item in items {
                if self.json {
                    console.json(&item)?;
                } else {
                    table.row(row(item));
                }
            }
            token = next;
            if token.is_empty() || self.limit.is_reached(there) {
                break;
            }
        }
        if !self.json {
            table.print(console.out, console.paint)?;
            if table.is_empty() {
                console.note(self.none);
            }
        }
        if !token.is_empty() {
            console.note("there are more; see --limit");
        }
        Ok(exit::DONE)
    }
}
