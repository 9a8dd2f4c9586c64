use std::sync::Arc;

use crate::store::contract::{query, records, uid};

use super::*;

#[tokio::test]
async fn appends_go_wrong_as_asked_for() {
    let memory = Memory::new(Clock::manual(0));
    memory.fail_next(2, Fault::NotWritten);
    for _ in 0..2 {
        let answer = memory.append(records("a", 0, 1)).await;
        assert!(matches!(answer, Err(Error::Unavailable(_))));
    }
    let batch = records("a", 0, 1);
    memory.fail_next(1, Fault::UnknownNotWritten);
    assert!(matches!(memory.append(batch.clone()).await, Err(Error::Unknown(_))));
    assert_eq!(memory.commits(), 0);
    memory.fail_next(1, Fault::UnknownWritten);
    assert!(matches!(memory.append(batch.clone()).await, Err(Error::Unknown(_))));
    assert_eq!(memory.commits(), 1);
    assert_eq!(memory.append(batch).await.unwrap(), Appended::Repeated);
    assert_eq!(memory.commits(), 1);
}

#[tokio::test]
async fn a_stopped_server_writes_nothing_more_and_the_next_goes_on() {
    let memory = Arc::new(Memory::new(Clock::manual(0)));
    memory.stop_after(2);
    for head in 0..2 {
        memory.append(records("a", head, 1)).await.unwrap();
    }
    let answer = memory.append(records("a", 2, 1)).await;
    assert!(matches!(answer, Err(Error::Unavailable(_))));
    assert_eq!(memory.open(&uid("a")).await.unwrap().unwrap().head, 2);
    memory.clear_faults();
    let next: Arc<dyn Store> = memory;
    assert_eq!(next.append(records("a", 2, 1)).await.unwrap(), Appended::Done { feed: 3 });
}

#[tokio::test]
async fn a_failed_store_says_so_and_can_be_read() {
    let memory = Memory::new(Clock::manual(0));
    memory.fail("the disk");
    memory.fail("the disk again");
    assert_eq!(memory.failed().await, "the disk");
    let answer = memory.append(records("a", 0, 1)).await;
    assert_eq!(answer, Err(Error::Unavailable("the disk".into())));
    assert_eq!(memory.list(query("call")).await.unwrap(), (vec![], 0));
}
