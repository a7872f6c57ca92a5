use super::*;
use crate::message::{Change, Watermarks};
use crate::value::{Type, Value};

fn hello(has_upload: bool) -> Hello {
    Hello {
        remote_id: [1; 16],
        secret: [2; 32],
        model: "shop".into(),
        model_version: 1,
        fingerprint: 7,
        incarnation: [0; 16],
        note: [0; 16],
        upload_sequence: 4,
        download_applied: [0; 16],
        has_upload,
        takes_chunks: false,
        knows_leaving: false,
        wants_download: true,
        uploads: Vec::new(),
        frozen: None,
        watermarks: Watermarks::default(),
    }
}

fn table() -> Frame {
    TableHeader { table: 0, name: "t".into(), columns: vec![("id".into(), Type::Int)], key: vec![0] }.to_frame()
}

fn changes(id: i64) -> Frame {
    let mut payload = Vec::new();
    Change { old: None, new: Some(vec![Value::Int(id)]) }.write(&mut payload, &[Type::Int]);
    Frame::packed(Kind::Changes, payload)
}

fn end() -> Frame {
    Frame::new(Kind::End, Vec::new())
}

fn upload_end(sequence: u64, frames: &[Frame]) -> Frame {
    let mut digest = Digest::new();
    for frame in frames {
        digest.add(frame.kind, &frame.payload(1 << 20).expect("payload"));
    }
    UploadEnd { sequence, changes: 1, digest: digest.finish() }.to_frame()
}

fn whole() -> Vec<Frame> {
    let upload = [table(), changes(1), changes(2), table(), changes(3)];
    let last = upload_end(5, &upload);
    [vec![hello(true).to_frame()], upload.to_vec(), vec![last, end()]].concat()
}

fn bytes(frames: &[Frame]) -> Vec<u8> {
    frames.iter().flat_map(Frame::to_bytes).collect()
}

fn read(bytes: &[u8], piece: usize, limits: Limits) -> Result<Vec<RequestEvent>, RequestError> {
    let mut reader = RequestReader::new(limits);
    let mut events = Vec::new();
    for piece in bytes.chunks(piece) {
        reader.push(piece);
        while let Some(event) = reader.poll()? {
            events.push(event);
        }
    }
    reader.finish().map(|()| events)
}

fn refused(frames: &[Frame]) -> String {
    read(&bytes(frames), 1 << 20, Limits::REQUEST).expect_err("refused").to_string()
}

#[test]
fn a_request_in_pieces_of_any_size() {
    let stream = bytes(&whole());
    let expected = read(&stream, stream.len(), Limits::REQUEST).expect("whole");
    assert_eq!(expected.len(), whole().len());
    assert_eq!(expected.last(), Some(&RequestEvent::End));
    for piece in 1..40 {
        assert_eq!(read(&stream, piece, Limits::REQUEST).as_ref(), Ok(&expected));
    }
}

#[test]
fn a_request_without_upload() {
    assert_eq!(read(&bytes(&[hello(false).to_frame(), end()]), 7, Limits::REQUEST).map(|e| e.len()), Ok(2));
}

#[test]
fn a_request_cut_anywhere_is_never_whole() {
    let stream = bytes(&whole());
    for length in 0..stream.len() {
        assert_eq!(read(&stream[..length], 64, Limits::REQUEST), Err(RequestError::Truncated), "cut at {length}");
    }
    assert_eq!(RequestError::Truncated.code(), ErrorCode::Damaged);
}

#[test]
fn every_flipped_bit_is_noticed() {
    let stream = bytes(&whole());
    for bit in 0..stream.len() * 8 {
        let mut broken = stream.clone();
        broken[bit / 8] ^= 1 << (bit % 8);
        assert!(read(&broken, 4096, Limits::REQUEST).is_err(), "bit {bit}");
    }
}

#[test]
fn frames_out_of_order_are_refused() {
    let (hi, table, change, end) = (hello(true).to_frame(), table(), changes(1), end());
    let order = |frames: &[&Frame]| refused(&frames.iter().map(|f| (*f).clone()).collect::<Vec<_>>());
    assert_eq!(order(&[&table]), "frame Table where HELLO was expected");
    assert_eq!(order(&[&hi, &change]), "frame Changes where TABLE, TICKET or UPLOAD_END was expected");
    assert_eq!(order(&[&hi, &hi]), "frame Hello where TABLE, TICKET or UPLOAD_END was expected");
    assert_eq!(order(&[&hi, &table, &end]), "frame End where CHANGES, TABLE or UPLOAD_END was expected");
    assert_eq!(order(&[&hello(false).to_frame(), &table]), "frame Table where END was expected");
    let after_end = [whole(), vec![end.clone()]].concat();
    assert_eq!(refused(&after_end), "frame End where nothing more was expected");
    assert_eq!(order(&[&hi, &table, &Frame::new(Kind::Rows, Vec::new())]).split(' ').nth(1), Some("Rows"));
}

#[test]
fn bytes_after_end_are_refused() {
    let mut stream = bytes(&whole());
    stream.push(0);
    assert!(read(&stream, 4096, Limits::REQUEST).is_err());
}

#[test]
fn number_and_digest_are_held() {
    let upload = [table(), changes(1)];
    let with = |last| [vec![hello(true).to_frame()], upload.to_vec(), vec![last, end()]].concat();
    for number in [4, u64::MAX] {
        assert_eq!(
            refused(&with(upload_end(number, &upload))),
            format!("upload number {number}, expected 5 or more: it follows the one acknowledged in HELLO")
        );
    }
    assert_eq!(refused(&with(upload_end(5, &[table(), changes(2)]))), RequestError::Digest.to_string());
}

#[test]
fn limits_are_held() {
    let stream = bytes(&whole());
    let code = |limits| read(&stream, 64, limits).expect_err("above a limit").code();
    assert_eq!(code(Limits { frame_bytes_max: 30, ..Limits::REQUEST }), ErrorCode::TooLarge);
    assert_eq!(code(Limits { total_bytes_max: 200, ..Limits::REQUEST }), ErrorCode::TooLarge);
    assert_eq!(code(Limits { frames_max: 7, ..Limits::REQUEST }), ErrorCode::TooLarge);
    assert!(read(&stream, 64, Limits { frames_max: 8, ..Limits::REQUEST }).is_ok());
}

#[test]
fn what_compresses_well_does_not_get_round_the_limits() {
    let upload = [table(), Frame::packed(Kind::Changes, vec![0; 1 << 20])];
    let frames = [vec![hello(true).to_frame()], upload.to_vec(), vec![upload_end(5, &upload), end()]].concat();
    let stream = bytes(&frames);
    assert!(stream.len() < 2_000);
    assert!(read(&stream, 64, Limits::REQUEST).is_ok());
    for limits in
        [Limits { frame_bytes_max: 1 << 19, ..Limits::REQUEST }, Limits { total_bytes_max: 1 << 19, ..Limits::REQUEST }]
    {
        assert_eq!(read(&stream, 64, limits).expect_err("too large").code(), ErrorCode::TooLarge);
    }
}

#[test]
fn another_version_has_a_code_of_its_own() {
    let mut payload = hello(false).to_frame().payload(1 << 20).expect("payload").into_owned();
    payload[0] = 2;
    let error = read(&bytes(&[Frame::new(Kind::Hello, payload)]), 64, Limits::REQUEST).expect_err("version");
    assert_eq!(error.code(), ErrorCode::UnsupportedVersion);
}

#[test]
fn a_ticket_stands_for_the_frames_of_an_upload() {
    let ticket = crate::message::Ticket { ticket: [4; 16], bytes: 99 };
    let last = upload_end(5, &[table()]);
    let request = [hello(true).to_frame(), ticket.to_frame(), last.clone(), end()];
    let events = read(&bytes(&request), 10, Limits::REQUEST).expect("a request");
    assert_eq!(events[1], RequestEvent::Ticket(ticket));
    assert!(matches!(events[2..], [RequestEvent::UploadEnd(UploadEnd { sequence: 5, .. }), RequestEvent::End]));
    let wrong = [
        vec![hello(true).to_frame(), table(), ticket.to_frame()],
        vec![hello(true).to_frame(), ticket.to_frame(), ticket.to_frame()],
        vec![hello(true).to_frame(), ticket.to_frame(), table()],
        vec![hello(true).to_frame(), ticket.to_frame(), end()],
        vec![hello(false).to_frame(), ticket.to_frame()],
        vec![hello(true).to_frame(), ticket.to_frame(), upload_end(7, &[])],
    ];
    for frames in wrong {
        read(&bytes(&frames), 10, Limits::REQUEST).expect_err("out of order, or of another number");
    }
}

#[test]
fn pieces_are_frames_of_one_upload_and_nothing_else() {
    let upload = [table(), changes(1), changes(2), table(), changes(3)];
    let read = |bytes: &[u8], piece: usize| {
        let mut reader = PiecesReader::new(Limits::REQUEST);
        let mut frames = Vec::new();
        for piece in bytes.chunks(piece) {
            reader.push(piece);
            while let Some(frame) = reader.poll()? {
                frames.push(frame);
            }
        }
        reader.finish().map(|digest| (frames, digest))
    };
    let whole = bytes(&upload);
    for piece in [1, 7, 10_000] {
        let (frames, digest) = read(&whole, piece).expect("an upload");
        assert_eq!(frames, upload);
        let UploadEnd { digest: expected, .. } =
            UploadEnd::from_payload(&upload_end(5, &upload).payload(100).expect("a payload")).expect("an end");
        assert_eq!(digest, expected);
    }
    assert_eq!(read(&whole[..whole.len() - 1], 7).expect_err("cut off").code(), ErrorCode::Damaged);
    assert_eq!(read(&bytes(&[changes(1)]), 7).expect_err("no TABLE").code(), ErrorCode::Malformed);
    assert_eq!(read(&bytes(&[table(), end()]), 7).expect_err("END").code(), ErrorCode::Malformed);
    let mut damaged = whole;
    *damaged.last_mut().expect("bytes") ^= 1;
    assert_eq!(read(&damaged, 7).expect_err("damaged").code(), ErrorCode::Damaged);
}
