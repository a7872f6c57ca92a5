//! Files and the disks that they are on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Findings;

/// File systems that are somewhere else: locks and shared memory, which SQLite needs, don't hold there.
const NETWORK: [&str; 14] = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "fuse.glusterfs",
    "fuse.sshfs",
    "fuse.s3fs",
    "lustre",
    "beegfs",
];

/// No ready file takes that long.
const UNFINISHED_AGE: Duration = Duration::from_hours(1);

/// Whether the disk of this file or folder has space left.
pub(super) fn space(path: &Path, what: &str, free_mib: u64, findings: &mut Findings) {
    let Ok(disk) = rustix::fs::statvfs(path) else { return };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize) >> 20;
    if free < free_mib {
        findings.error(
            "disk_space",
            format!("the disk of {what} {} has {free} MiB left, expected at least {free_mib}", path.display()),
            "free some, or move it to a larger disk; --free-mib sets how much is expected",
        );
    }
}

/// Folders in which a server was making a ready file when it was killed. One that runs may be making one just now.
pub(super) fn unfinished(spool: &Path, findings: &mut Findings) {
    for entry in std::fs::read_dir(spool).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|there| there.modified()).ok().and_then(|made| made.elapsed().ok());
        let is_old = age.is_some_and(|age| age > UNFINISHED_AGE);
        if is_old && entry.file_name().to_string_lossy().starts_with(headwater_server::READY_FOLDER) {
            let what =
                format!("{} was left by a server that was killed while it made a ready file", entry.path().display());
            findings.warning("leftover", what, "delete it while no server runs");
        }
    }
}

/// Whether a SQLite file is on a disk of this machine.
pub(super) fn network(path: &Path, findings: &mut Findings) {
    let (Ok(path), Ok(mounts)) = (path.canonicalize(), std::fs::read_to_string("/proc/self/mountinfo")) else { return };
    if let Some(kind) = kind_of(&mounts, &path).filter(|kind| NETWORK.contains(&kind.as_str())) {
        findings.error(
            "network_mount",
            format!("{} is on a network file system ({kind}): SQLite's locks don't hold there", path.display()),
            "move the file to a disk of the machine that uses it",
        );
    }
}

/// The kind of the file system that a path is on, by the text of /proc/self/mountinfo: that of the deepest mount above it, the last
/// one where several are at the same place.
fn kind_of(mounts: &str, path: &Path) -> Option<String> {
    let mounts = mounts.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = PathBuf::from(unescaped(before.split(' ').nth(4)?));
        let kind = after.split(' ').next()?;
        path.starts_with(&point).then(|| (point.components().count(), kind.to_owned()))
    });
    mounts.max_by_key(|(depth, _)| *depth).map(|(_, kind)| kind)
}

/// A blank is `\\040` there.
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_and_latest_mount_counts() {
        let mounts = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      30 21 0:40 / /mnt rw shared:1 - tmpfs none rw\n\
                      31 30 0:41 / /mnt/far rw,relatime shared:2 master:1 - nfs4 host:/export rw\n\
                      32 30 0:42 / /mnt/two\\040words rw - cifs //host/share rw\n\
                      33 30 0:43 / /mnt/far/near rw - ext4 /dev/sdb rw\n\
                      34 30 0:44 / /mnt rw - xfs /dev/sdc rw";
        let kind = |path: &str| kind_of(mounts, Path::new(path)).expect("a mount");
        assert_eq!(kind("/srv/a.db"), "ext4");
        assert_eq!(kind("/mnt/a.db"), "xfs");
        assert_eq!(kind("/mnt/far/a.db"), "nfs4");
        assert_eq!(kind("/mnt/farther/a.db"), "xfs");
        assert_eq!(kind("/mnt/far/near/a.db"), "ext4");
        assert_eq!(kind("/mnt/two words/a.db"), "cifs");
        assert!(NETWORK.contains(&kind("/mnt/far/a.db").as_str()) && !NETWORK.contains(&kind("/mnt/a.db").as_str()));
    }
}
