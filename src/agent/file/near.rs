//! "Did you mean": the known word that is nearest to an unknown one.

/// ` (did you mean ...?)` if a known word is near, or else nothing.
pub(crate) fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    match nearest(word, known) {
        Some(near) => format!(" (did you mean `{near}`?)"),
        None => String::new(),
    }
}

/// The nearest known word, if it is near enough to be meant.
fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let simple = |text: &str| -> Vec<char> {
        let letters = text.chars().filter(|c| !matches!(c, '_' | '-' | ' '));
        letters.flat_map(char::to_lowercase).take(64).collect()
    };
    let word = simple(word);
    let near = known.into_iter().map(|known| (distance(&word, &simple(known)), known));
    let limit = (word.len() / 3).clamp(1, 3);
    near.filter(|(distance, _)| *distance <= limit).min_by_key(|(d, _)| *d).map(|(_, near)| near)
}

/// How many letters must be put in, taken out, changed or swapped with the next.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let change = last[j] + usize::from(a[i] != b[j]);
            let mut best = change.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_suggested() {
        let known = ["description", "long_running", "effect"];
        assert_eq!(hint("descripton", known), " (did you mean `description`?)");
        assert_eq!(hint("longRunning", known), " (did you mean `long_running`?)");
        assert_eq!(hint("efefct", known), " (did you mean `effect`?)");
        assert_eq!(hint("zzz", known), "");
    }
}
