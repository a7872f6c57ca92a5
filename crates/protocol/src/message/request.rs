//! HELLO and UPLOAD_END.

use super::{
    NAME_BYTES_MAX, UPLOADS_NAMED_MAX, VERSION, WATERMARK_BYTES_MAX, WATERMARK_ENTRIES_MAX, answer::Watermarks, whole,
};
use crate::frame::{Frame, Kind};
use crate::wire::{DecodeError, Reader, Write};

/// Who syncs, for which model, and what it has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Hello {
    /// The remote ID, made at random when the remote was created.
    pub remote_id: [u8; 16],
    /// What binds the remote ID to this remote: whoever presents the ID must present this too.
    pub secret: [u8; 32],
    /// The model's name.
    pub model: String,
    /// The model's version.
    pub model_version: u32,
    /// [`Model::fingerprint`] of the model that the remote's schema was made from.
    ///
    /// [`Model::fingerprint`]: https://docs.rs/headwater-model
    pub fingerprint: u64,
    /// The incarnation that the watermarks belong to; zero at a first sync.
    pub incarnation: [u8; 16],
    /// The newest note that the remote knew of that incarnation; zero if none.
    pub note: [u8; 16],
    /// Number of the last upload whose receipt the remote has applied.
    pub upload_sequence: u64,
    /// ID of the last download that the remote has applied; zero if none.
    pub download_applied: [u8; 16],
    /// Whether upload frames and UPLOAD_END follow.
    pub has_upload: bool,
    /// Whether a download is wanted.
    pub wants_download: bool,
    /// Whether partitions that come whole may come as SNAPSHOT, their rows in chunks.
    pub takes_chunks: bool,
    /// Whether a row that lives on in a partition which the remote does not hold comes as [`super::RowOp::Leave`].
    pub knows_leaving: bool,
    /// Its last uploads whose receipts it has applied, newest first; at most [`UPLOADS_NAMED_MAX`].
    pub uploads: Vec<AppliedUpload>,
    /// The upload that waits for its receipt, if there is one and its cut has a name.
    pub frozen: Option<FrozenUpload>,
    /// What the remote has seen of each partition that it holds.
    pub watermarks: Watermarks,
}

/// Which upload a number meant: two files that go by one remote ID may each have used it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedUpload {
    /// Its number.
    pub sequence: u64,
    /// The first bytes of its digest.
    pub digest: [u8; 8],
}

/// The upload that is frozen at a remote: cut, and without its receipt.
///
/// It stands before the list of applied uploads, as one more of a number that no upload has: servers that do not know it take no notice. The
/// one that does says in [`Welcome::frozen`] what it knows of it.
///
/// [`Welcome::frozen`]: super::Welcome::frozen
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrozenUpload {
    /// Its number.
    pub sequence: u64,
    /// The name of its cut, random. Two files that go by one remote ID may each cut the same changes under the same number.
    pub cut: [u8; 8],
    /// The remote gives it up: where it is not applied, it is never to be.
    pub is_given_up: bool,
}

/// Added to the number of a frozen upload in the list.
const FROZEN: u64 = 1 << 63;
/// Added where it is given up.
const GIVEN_UP: u64 = 1 << 62;

impl FrozenUpload {
    fn to_listed(self) -> AppliedUpload {
        let given_up = if self.is_given_up { GIVEN_UP } else { 0 };
        AppliedUpload { sequence: FROZEN | given_up | self.sequence, digest: self.cut }
    }

    fn from_listed(listed: AppliedUpload) -> Option<FrozenUpload> {
        (listed.sequence & FROZEN != 0).then_some(FrozenUpload {
            sequence: listed.sequence & !(FROZEN | GIVEN_UP),
            cut: listed.digest,
            is_given_up: listed.sequence & GIVEN_UP != 0,
        })
    }
}

impl AppliedUpload {
    /// The upload of this number and digest.
    pub fn new(sequence: u64, digest: &[u8; 32]) -> AppliedUpload {
        AppliedUpload { sequence, digest: std::array::from_fn(|place| digest[place]) }
    }

    /// Writes it as HELLO has it.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.digest);
    }

    /// Reads what [`AppliedUpload::write`] wrote.
    pub fn read(reader: &mut Reader<'_>) -> Result<AppliedUpload, DecodeError> {
        Ok(AppliedUpload { sequence: reader.u64("upload sequence")?, digest: reader.array("upload digest")? })
    }
}

impl Hello {
    /// The frame.
    pub fn to_frame(&self) -> Frame {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.remote_id);
        out.extend_from_slice(&self.secret);
        out.put_bytes(self.model.as_bytes());
        out.extend_from_slice(&self.model_version.to_le_bytes());
        out.extend_from_slice(&self.fingerprint.to_le_bytes());
        out.extend_from_slice(&self.incarnation);
        out.extend_from_slice(&self.note);
        out.extend_from_slice(&self.upload_sequence.to_le_bytes());
        out.extend_from_slice(&self.download_applied);
        let frozen = self.frozen.map(FrozenUpload::to_listed);
        let uploads: Vec<AppliedUpload> =
            frozen.into_iter().chain(self.uploads.iter().copied()).take(UPLOADS_NAMED_MAX).collect();
        let has_uploads = !uploads.is_empty();
        let flags = [self.has_upload, self.wants_download, has_uploads, self.takes_chunks, self.knows_leaving];
        out.push((0..).zip(flags).map(|(bit, on)| u8::from(on) << bit).sum());
        if has_uploads {
            out.put_varint(uploads.len() as u64);
            for upload in &uploads {
                upload.write(&mut out);
            }
        }
        self.watermarks.write(&mut out);
        Frame::packed(Kind::Hello, out)
    }

    /// Reads the payload. A version other than [`VERSION`] is `Undefined { field: "protocol version", .. }`.
    pub fn from_payload(payload: &[u8]) -> Result<Hello, DecodeError> {
        whole(payload, "hello", |reader| {
            let version = reader.u8("protocol version")?;
            if version != VERSION {
                return Err(DecodeError::Undefined { field: "protocol version", actual: u64::from(version) });
            }
            let remote_id = reader.array("remote id")?;
            let secret = reader.array("secret")?;
            let model = reader.text(NAME_BYTES_MAX, "model")?.to_owned();
            let model_version = reader.u32("model version")?;
            let fingerprint = reader.u64("fingerprint")?;
            let incarnation = reader.array("incarnation")?;
            let note = reader.array("note")?;
            let upload_sequence = reader.u64("upload sequence")?;
            let download_applied = reader.array("download applied")?;
            let flags = reader.u8("hello flags")?;
            if flags > 31 {
                return Err(DecodeError::Undefined { field: "hello flags", actual: u64::from(flags) });
            }
            let mut uploads = if flags & 4 != 0 { read_uploads(reader)? } else { Vec::new() };
            let frozen = uploads.first().copied().and_then(FrozenUpload::from_listed);
            if frozen.is_some() {
                uploads.remove(0);
            }
            let watermarks = Watermarks::read(reader, WATERMARK_ENTRIES_MAX, WATERMARK_BYTES_MAX)?;
            Ok(Hello {
                remote_id,
                secret,
                model,
                model_version,
                fingerprint,
                incarnation,
                note,
                upload_sequence,
                download_applied,
                has_upload: flags & 1 != 0,
                wants_download: flags & 2 != 0,
                takes_chunks: flags & 8 != 0,
                knows_leaving: flags & 16 != 0,
                uploads,
                frozen,
                watermarks,
            })
        })
    }
}

/// At least one: else the flag would not be set.
fn read_uploads(reader: &mut Reader<'_>) -> Result<Vec<AppliedUpload>, DecodeError> {
    match reader.count(UPLOADS_NAMED_MAX, "uploads")? {
        0 => Err(DecodeError::Undefined { field: "uploads", actual: 0 }),
        count => (0..count).map(|_| AppliedUpload::read(reader)).collect(),
    }
}

/// The end of an upload: its number, how many changes it has, and what identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadEnd {
    /// The upload sequence: one more than that of the remote's last upload that was applied.
    pub sequence: u64,
    /// How many changes the upload has.
    pub changes: u64,
    /// SHA-256 over each TABLE and CHANGES frame: kind (u8), uncompressed length (u32), uncompressed payload.
    pub digest: [u8; 32],
}

impl UploadEnd {
    /// The frame.
    pub fn to_frame(&self) -> Frame {
        let mut out = Vec::with_capacity(48);
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.changes.to_le_bytes());
        out.extend_from_slice(&self.digest);
        Frame::new(Kind::UploadEnd, out)
    }

    /// Reads the payload.
    pub fn from_payload(payload: &[u8]) -> Result<UploadEnd, DecodeError> {
        whole(payload, "upload end", |reader| {
            Ok(UploadEnd {
                sequence: reader.u64("upload sequence")?,
                changes: reader.u64("changes")?,
                digest: reader.array("digest")?,
            })
        })
    }
}
