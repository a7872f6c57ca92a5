//! Lengths that lie: `0xFFFFFFFF` in every place that has a length is refused before anything is reserved for it. A counting
//! allocator is the witness.
#![allow(unsafe_code, reason = "a global allocator can't be written without; it only counts and passes on")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use headwater_protocol::message::{
    AppliedUpload, Change, Hello, KeyRanges, PartitionMark, Receipt, ServerError, Snapshot, TableHeader, Watermarks,
};
use headwater_protocol::row::read_row;
use headwater_protocol::server::RequestReader;
use headwater_protocol::wire::{Reader, Write};
use headwater_protocol::{Decoder, Frame, Kind, Limits, Type};

struct Counting;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn note(bytes: usize) {
    // The thread may be ending, when nobody looks any more.
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(bytes)));
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(new_size);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The largest allocation while `work` runs.
fn largest<T>(work: impl FnOnce() -> T) -> (usize, T) {
    LARGEST.with(|largest| largest.set(0));
    let result = work();
    (LARGEST.with(Cell::get), result)
}

const LIMIT: usize = 16 << 20;
const SMALL: usize = 64 * 1024;

/// Puts `0xFFFFFFFF` as a varint at every byte of a payload, and has it refused without a large allocation; the same for every other
/// way to say much in a few bytes.
fn lie_everywhere(name: &str, payload: &[u8], read: impl Fn(&[u8]) -> bool) {
    assert!(read(payload), "{name} can be read as it is");
    for value in [u64::from(u32::MAX), u64::MAX, 1 << 40, LIMIT as u64 * 4, 100_000] {
        let mut lie = Vec::new();
        lie.put_varint(value);
        for place in 0..=payload.len() {
            let lying = [&payload[..place], &lie, &payload[place.min(payload.len())..]].concat();
            let (bytes, _) = largest(|| read(&lying));
            assert!(bytes <= SMALL, "{name}: {bytes} bytes reserved for {value} at byte {place}");
        }
    }
}

#[test]
fn lengths_that_lie_reserve_nothing() {
    let hello = Hello {
        remote_id: [0; 16],
        secret: [0; 32],
        model: "m".to_owned(),
        model_version: 1,
        fingerprint: 0,
        incarnation: [0; 16],
        note: [0; 16],
        upload_sequence: 0,
        download_applied: [0; 16],
        has_upload: false,
        wants_download: false,
        takes_chunks: false,
        knows_leaving: false,
        uploads: Vec::new(),
        frozen: None,
        watermarks: Watermarks::default(),
    };
    let uploads = vec![AppliedUpload { sequence: 1, digest: [1; 8] }];
    let naming = Hello { uploads, ..hello.clone() }.to_frame().payload(LIMIT).expect("payload").into_owned();
    lie_everywhere("hello with uploads", &naming, |bytes| Hello::from_payload(bytes).is_ok());
    let hello = hello.to_frame().payload(LIMIT).expect("payload").into_owned();
    lie_everywhere("hello", &hello, |bytes| Hello::from_payload(bytes).is_ok());
    lie_everywhere("table", &[0, 1, b't', 1, 1, b'c', 2, 1, 0], |bytes| TableHeader::from_payload(bytes).is_ok());
    lie_everywhere("watermarks", &[1, 1, 7, 1, 0, 0, 0], |bytes| Watermarks::from_payload(bytes).is_ok());
    lie_everywhere("partition", &[0, 1, 1, 7], |bytes| PartitionMark::from_payload(bytes).is_ok());
    lie_everywhere("key ranges", &[1, 0, 2, 4], |bytes| KeyRanges::from_payload(bytes).is_ok());
    let snapshot = [&[0, 1, 7, 1, b'u'], &[0; 32][..], &[5, 1], &[0; 16], &[9], &[0; 32]].concat();
    lie_everywhere("snapshot", &snapshot, |bytes| Snapshot::from_payload(bytes).is_ok());
    lie_everywhere("error", &[1, 0, 0, 0, 0, 0, 1, b'x'], |bytes| ServerError::from_payload(bytes).is_ok());
    let receipt = [&[1, 0, 0, 0, 0, 0, 0, 0], &[9, 0, 0, 0, 0, 0, 0, 0][..], &[1, 0, 2, 1, 0, 1, b'x']].concat();
    lie_everywhere("receipt", &receipt, |bytes| Receipt::from_payload(bytes).is_ok());
    let types = [Type::Text, Type::Decimal, Type::Bytes, Type::Json, Type::Int];
    let row = [0x55, 0x01, 1, b'x', 5, 0, 0x10, 0, 0, 2];
    lie_everywhere("row", &row, |bytes| read_row(&mut Reader::new(bytes), &types, LIMIT, None).is_ok());
    let change = [&[1], &row[..]].concat();
    lie_everywhere("change", &change, |bytes| Change::read(&mut Reader::new(bytes), &types, LIMIT).is_ok());
}

#[test]
fn frames_that_lie_reserve_nothing() {
    for length in [u32::MAX, LIMIT as u32 + 1, LIMIT as u32] {
        let mut header = Frame::new(Kind::Hello, Vec::new()).to_bytes();
        header[..4].copy_from_slice(&length.to_le_bytes());
        let (bytes, result) = largest(|| {
            let mut decoder = Decoder::new(LIMIT);
            decoder.push(&header);
            decoder.next_frame()
        });
        assert!(bytes <= SMALL, "{bytes} bytes reserved for a frame of {length}");
        assert_eq!(result.is_err(), length > LIMIT as u32, "{result:?}");
    }
}

#[test]
fn a_compressed_payload_that_lies_about_its_length_is_refused() {
    let honest = Frame::packed(Kind::Changes, vec![7; 100_000]);
    let mut bytes = honest.to_bytes();
    assert!(bytes.len() < 1_000, "it is compressed");
    for length in [u32::MAX, LIMIT as u32 + 1, 99_999, 100_001, 0] {
        bytes[12..16].copy_from_slice(&length.to_le_bytes());
        let checksum = crc(&bytes);
        bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
        let mut decoder = Decoder::new(LIMIT);
        decoder.push(&bytes);
        let frame = decoder.next_frame().expect("the checksum is right").expect("a whole frame");
        let (largest, result) = largest(|| frame.payload(LIMIT).map(|payload| payload.len()));
        assert!(result.is_err(), "{length}: {result:?}");
        assert!(largest <= 200_000, "{largest} bytes reserved for {length}");
    }
}

fn crc(frame: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&frame[..8]), &frame[12..])
}

#[test]
fn a_request_is_never_held_whole() {
    let mut reader = RequestReader::new(Limits::REQUEST);
    let hello = Hello {
        remote_id: [0; 16],
        secret: [0; 32],
        model: String::new(),
        model_version: 1,
        fingerprint: 0,
        incarnation: [0; 16],
        note: [0; 16],
        upload_sequence: 0,
        download_applied: [0; 16],
        has_upload: true,
        wants_download: false,
        takes_chunks: false,
        knows_leaving: false,
        uploads: Vec::new(),
        frozen: None,
        watermarks: Watermarks::default(),
    };
    let table =
        TableHeader { table: 0, name: "t".to_owned(), columns: vec![("c".to_owned(), Type::Bytes)], key: vec![0] };
    let frame = Frame::new(Kind::Changes, vec![1; 60_000]).to_bytes();
    let (bytes, ()) = largest(|| {
        for bytes in
            [hello.to_frame().to_bytes(), table.to_frame().to_bytes()].iter().chain(std::iter::repeat_n(&frame, 500))
        {
            for piece in bytes.chunks(16 * 1024) {
                reader.push(piece);
                while reader.poll().expect("a good request").is_some() {}
            }
        }
    });
    assert!(bytes <= 300_000, "{bytes} bytes at once for 30 MB of frames");
}
