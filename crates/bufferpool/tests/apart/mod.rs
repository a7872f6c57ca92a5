//! A small disk of a test's own: the test runs a second time in a process with mounts of its own (namespaces(7)), which go with it.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

const MARK: &str = "HEADWATER_APART";

/// Whether this process has mounts of its own. If not, the test of this name has been run by one that has, to its end.
pub(crate) fn is_apart(test: &str) -> bool {
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let mut unshare = Command::new("unshare");
    if std::fs::metadata("/proc/self").expect("/proc").uid() != 0 {
        unshare.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    let this = std::env::current_exe().expect("this test");
    unshare.arg("--mount").arg(this).args(["--exact", test, "--nocapture"]).env(MARK, "1");
    let output = unshare.output().expect("unshare: it belongs to util-linux");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "apart: {said}");
    false
}

/// A file system in memory, mounted on a temporary folder.
pub(crate) struct SmallDisk(TempDir);

impl SmallDisk {
    /// An empty one of so many MiB.
    pub(crate) fn new(mib: u32) -> SmallDisk {
        let folder = tempfile::tempdir().expect("a folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m,mode=1777"), "tmpfs"]).arg(folder.path());
        let done = mount.output().expect("mount: it belongs to util-linux");
        assert!(done.status.success(), "mount: {}", String::from_utf8_lossy(&done.stderr));
        SmallDisk(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fills it to the last page.
    pub(crate) fn fill(&self) {
        let mut ballast = File::create(self.path().join("ballast")).expect("a file");
        let full = loop {
            if let Err(full) = ballast.write_all(&[0; 4096]) {
                break full;
            }
        };
        assert_eq!(full.kind(), ErrorKind::StorageFull, "{full}");
    }

    /// Makes room again.
    pub(crate) fn clear(&self) {
        std::fs::remove_file(self.path().join("ballast")).expect("it was there");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Whatever is open still holds it until the namespace goes.
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}
