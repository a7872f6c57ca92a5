//! A small disk: a file system of its own that can be filled to the last page, or to the last file.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

/// A file system in memory, mounted on a temporary folder. Only for a process with mounts of its own
/// ([`is_apart`](crate::apart::is_apart), `--mount`).
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// Mounts an empty one of so many MiB.
    pub fn new(mib: u32) -> Result<SmallDisk> {
        SmallDisk::mounted(&format!("size={mib}m,mode=1777"))
    }

    /// The same, with room for so many files and folders (inodes).
    pub fn with_inodes(mib: u32, inodes: u32) -> Result<SmallDisk> {
        SmallDisk::mounted(&format!("size={mib}m,mode=1777,nr_inodes={inodes}"))
    }

    fn mounted(options: &str) -> Result<SmallDisk> {
        let folder = tempfile::tempdir()?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(folder.path());
        let done = mount.output().context("mount: it belongs to util-linux")?;
        ensure!(done.status.success(), "mount: {}", String::from_utf8_lossy(&done.stderr));
        Ok(SmallDisk(folder))
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }

    /// Fills it, save so many bytes.
    pub fn leave(&self, bytes: u64) -> Result<()> {
        let mut ballast = File::create(self.ballast())?;
        let piece = vec![0; 1 << 16];
        let full = loop {
            if let Err(full) = ballast.write_all(&piece) {
                break full;
            }
        };
        ensure!(full.kind() == ErrorKind::StorageFull, "filling a disk: {full}");
        let length = ballast.metadata()?.len();
        ballast.set_len(length.saturating_sub(bytes))?;
        Ok(())
    }

    /// Makes empty files until no further one can be made, save so many.
    pub fn leave_inodes(&self, count: usize) -> Result<()> {
        let folder = self.inodes();
        std::fs::create_dir(&folder)?;
        let mut made = Vec::new();
        let full = loop {
            let path = folder.join(made.len().to_string());
            match File::create(&path) {
                Ok(_) => made.push(path),
                Err(full) => break full,
            }
        };
        ensure!(full.kind() == ErrorKind::StorageFull, "using the inodes up: {full}");
        ensure!(made.len() >= count, "there were {} inodes, not {count}", made.len());
        made.iter().take(count).try_for_each(|path| Ok(std::fs::remove_file(path)?))
    }

    /// Removes those files.
    pub fn clear_inodes(&self) -> Result<()> {
        Ok(std::fs::remove_dir_all(self.inodes())?)
    }

    fn inodes(&self) -> PathBuf {
        self.path().join("inodes")
    }

    /// Makes room again.
    pub fn clear(&self) -> Result<()> {
        Ok(std::fs::remove_file(self.ballast())?)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Whatever is open still holds it until the namespace goes.
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}
