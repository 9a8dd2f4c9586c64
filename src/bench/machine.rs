//! What the machine itself can do.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use super::Failure;

/// How long the disk is asked.
const ASKED: Duration = Duration::from_secs(1);

/// Writes of 1 KiB a second that this disk makes durable, one after another.
pub(super) fn fsyncs_per_second(directory: &Path) -> Result<f64, Failure> {
    let path = directory.join("fsyncs");
    let mut file = std::fs::File::create(&path)?;
    let block = [7_u8; 1024];
    let (since, mut count) = (Instant::now(), 0_u32);
    while since.elapsed() < ASKED {
        file.write_all(&block)?;
        file.sync_data()?;
        count += 1;
    }
    let rate = f64::from(count) / since.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(rate)
}

/// Bytes of a process that are in memory.
pub(super) fn resident(pid: u32) -> Result<u64, Failure> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).ok_or("no VmRSS")?;
    Ok(kib.parse::<u64>()? * 1024)
}

/// Bytes of all files in a directory.
pub(super) fn bytes_in(directory: &Path) -> Result<u64, Failure> {
    let mut sum = 0;
    for entry in std::fs::read_dir(directory)? {
        sum += entry?.metadata()?.len();
    }
    Ok(sum)
}
