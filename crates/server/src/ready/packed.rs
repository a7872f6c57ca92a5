//! A ready file as it is kept: compressed, in blocks that are a zstd frame each. So it is sent as it lies, from any block on, and a
//! remote on a slow line has it about as soon as it would have its rows.
//!
//! ```text
//! the file    | 256 KiB | 256 KiB | ... | the rest |
//! what lies   |frame|  frame |  ...  |frame|          `ends`: where each ends
//! ```

use std::fs::File;
use std::io::{self, BufWriter, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;

use headwater_protocol::message::READY_BLOCK_BYTES;
use sha2::{Digest as _, Sha256};

use crate::files::OpenFile;

/// As fast as a disk, and a SQLite file becomes a fourth to a half.
const LEVEL: i32 = 1;

/// A file in blocks.
#[derive(Debug)]
pub(super) struct Packed {
    file: OpenFile,
    ends: Vec<u64>,
    bytes: u64,
}

impl Packed {
    /// Packs a file into another one, which is empty; gives its digest too, unpacked.
    pub(super) fn of(plain: &File, file: OpenFile) -> io::Result<(Packed, [u8; 32])> {
        let mut out = BufWriter::new(&*file);
        let (mut ends, mut end, mut bytes, mut sha) = (Vec::new(), 0, 0, Sha256::new());
        let mut block = Vec::with_capacity(READY_BLOCK_BYTES as usize);
        loop {
            block.clear();
            plain.take(READY_BLOCK_BYTES).read_to_end(&mut block)?;
            if block.is_empty() {
                break;
            }
            sha.update(&block);
            bytes += block.len() as u64;
            let packed = zstd::bulk::compress(&block, LEVEL)?;
            out.write_all(&packed)?;
            end += packed.len() as u64;
            ends.push(end);
        }
        out.flush()?;
        drop(out);
        Ok((Packed { file, ends, bytes }, sha.finalize().into()))
    }

    /// One of so many bytes, for tests of the book of files.
    #[cfg(test)]
    pub(super) fn that_keeps(bytes: u64) -> Packed {
        let file = crate::files::Files::new(None, usize::MAX).create().expect("a file");
        Packed { file, ends: vec![bytes], bytes }
    }

    /// Bytes of the file.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that it takes here, and on its way.
    pub(super) fn kept(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// How many blocks there are.
    pub(super) fn blocks(&self) -> usize {
        self.ends.len()
    }

    /// Where a block begins.
    pub(super) fn start(&self, block: usize) -> u64 {
        if block == 0 { 0 } else { self.ends.get(block - 1).copied().unwrap_or(self.kept()) }
    }

    /// A block as it lies.
    pub(super) fn packed(&self, block: usize) -> io::Result<Vec<u8>> {
        let start = self.start(block);
        let mut packed = vec![0; (self.start(block + 1) - start) as usize];
        self.file.read_exact_at(&mut packed, start)?;
        Ok(packed)
    }

    /// What a block has of the file.
    pub(super) fn plain(&self, block: usize) -> io::Result<Vec<u8>> {
        zstd::bulk::decompress(&self.packed(block)?, READY_BLOCK_BYTES as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Seek as _;

    use super::*;
    use crate::files::Files;

    #[test]
    fn blocks_are_the_file() {
        let files = Files::new(None, usize::MAX);
        for length in [0, 1, READY_BLOCK_BYTES, READY_BLOCK_BYTES + 1, 3 * READY_BLOCK_BYTES + 17] {
            let content: Vec<u8> = (0..length).map(|place| (place % 251 * (place >> 9)) as u8).collect();
            let plain = files.create().expect("a file");
            (&*plain).write_all(&content).and_then(|()| (&*plain).rewind()).expect("written");
            let (packed, digest) = Packed::of(&plain, files.create().expect("a file")).expect("packed");
            assert_eq!(digest, <[u8; 32]>::from(Sha256::digest(&content)));
            assert_eq!((packed.bytes(), packed.blocks() as u64), (length, length.div_ceil(READY_BLOCK_BYTES)));
            let all: Vec<u8> = (0..packed.blocks()).flat_map(|block| packed.plain(block).expect("a block")).collect();
            assert!(all == content, "{length}");
            // From any block on what lies there is one stream, as decoders read it.
            for from in 0..packed.blocks() {
                let rest: Vec<u8> =
                    (from..packed.blocks()).flat_map(|block| packed.packed(block).expect("a block")).collect();
                assert_eq!(rest.len() as u64, packed.kept() - packed.start(from));
                assert!(zstd::decode_all(&*rest).expect("a stream") == content[from * READY_BLOCK_BYTES as usize..]);
            }
        }
    }
}
