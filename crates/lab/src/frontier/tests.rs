//! The reference's example, and what clients refuse.

use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use md5::{Digest as _, Md5};

use super::{Answer, AnswerError, Certificate, CertificateError, Field, PayloadError, Records, Request, Ttl};

/// ID NUMBER(10), NAME VARCHAR2; rows (1, alpha), (2, NULL), (3, '').
const PLAIN: &str = "06000000024944060000000a4e554d42455228313029060000
0004 4e414d4506000000085641524348415232 07 06000000013106
00000005 616c706861 07 060000000132 86 07 060000000133 0600000000 07";
const PLAIN_MD5: &str = "dd25677dcd5b4435553a4ba0234f55b6";
/// The same, by zlib at level 5, as the old servlet sends it.
const ZIPPED: &str = "eF5jY2BgYPJ0YQNSXH6hvk6uQRqGBpogLoufo68riMER5hjk7OEYZMQO4jEagkjWxJyCjESIgF\nEbhDYGkQzsAL1zCfc=";
const ZIPPED_MD5: &str = "6bef20ba03967bd7de155229fb69107a";
/// The compressed example, asked for with `sec=sig`, as `openssl pkeyutl -sign` signs it with the key of the certificate below.
const SIGNATURE: &str = "IwJUC/+LJ/m9jNZ3KLmUhPYhtC0z9f5WkMVJTOiUkRg7lxX9niXX/bhj/PHFiIJXvGgoQhg3t/AdlfJ19sQxwX1icDFP5FGCGSDRKRoCy18n\
                         JrfkIQ3UgwofVoKvXfkbepOXFI8swRyBuZQNoYEYNZp2+Zlf15FZ1qG7qlQZiiw=";
/// Of a key that is no secret: the one of the gateway's tests.
const CERTIFICATE: &str = include_str!("../../../gateway/src/frontier/signature/cert.pem");

fn plain() -> Vec<u8> {
    hex::decode(PLAIN.split_whitespace().collect::<String>()).expect("hex")
}

fn frame(encoding: &str, data: &str, quality: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"US-ASCII\"?>\n<!DOCTYPE frontier SYSTEM \"http://frontier.fnal.gov/frontier.dtd\">\n\
         <frontier version=\"3.42\" xmlversion=\"1.0\">\n <transaction payloads=\"1\">\n  \
         <payload type=\"frontier_request\" version=\"1\" encoding=\"{encoding}\">\n   <data>{data}</data>\n   \
         <quality {quality}/>\n  </payload>\n </transaction>\n</frontier>\n"
    )
}

fn sound(md5: &str) -> String {
    format!("error=\"0\" md5=\"{md5}\" records=\"3\" full_size=\"82\"")
}

#[test]
fn the_example_is_read_plain_and_after_keepalives() {
    let base64 = STANDARD.encode(plain());
    let xml = frame("BLOB", &base64, &sound(PLAIN_MD5));
    let answer = Answer::parse(xml.as_bytes(), "BLOB").expect("an answer");
    assert_eq!((answer.payload.as_slice(), answer.records, answer.keepalives), (plain().as_slice(), 3, 0));
    let late = format!("\n   <keepalive />\n   <keepalive />{}\n{}", &base64[..76], &base64[76..]);
    let xml = frame("BLOB", &late, &sound(PLAIN_MD5));
    let answer = Answer::parse(xml.as_bytes(), "BLOB").expect("an answer");
    assert_eq!((answer.payload, answer.keepalives), (plain(), 2));
}

#[test]
fn fields_of_the_example_are_text_null_and_empty() {
    let bytes = plain();
    let mut records = Records::of(&bytes).expect("a header");
    let columns: Vec<_> = records.columns().iter().map(|(name, kind)| (name.as_str(), kind.as_str())).collect();
    assert_eq!(columns, [("ID", "NUMBER(10)"), ("NAME", "VARCHAR2")]);
    let mut next = || records.next_record().expect("a record");
    assert_eq!(next(), Some(vec![Field::Bytes(b"1"), Field::Bytes(b"alpha")]));
    assert_eq!(next(), Some(vec![Field::Bytes(b"2"), Field::Null(6)]));
    assert_eq!(next(), Some(vec![Field::Bytes(b"3"), Field::Bytes(b"")]));
    assert_eq!(next(), None);
}

#[test]
fn fields_of_every_type_are_read() {
    let fields =
        "00ff 01fffffffe 02000000000000000a 033f800000 043ff0000000000000 05ffffffffffffffff 060000000141 80 85 07";
    let header = "0600000001410600000001 42".repeat(9) + "07";
    let bytes = hex::decode((header + fields).split_whitespace().collect::<String>()).expect("hex");
    let mut records = Records::of(&bytes).expect("a header");
    let expected = [
        Field::Byte(255),
        Field::Int4(-2),
        Field::Int8(10),
        Field::Float(1.0),
        Field::Double(1.0),
        Field::Time(-1),
        Field::Bytes(b"A"),
        Field::Null(0),
        Field::Null(5),
    ];
    assert_eq!(records.next_record().expect("a record").expect("one"), expected);
    for (at, wrong) in [(bytes.len() - 1, 8), (bytes.len() - 1, 0x87)] {
        let mut bytes = bytes.clone();
        bytes[at] = wrong;
        let mut records = Records::of(&bytes).expect("a header");
        assert_eq!(records.next_record(), Err(PayloadError::Type(wrong)));
    }
}

#[test]
fn a_payload_cut_anywhere_is_no_payload() {
    let bytes = plain();
    let whole = |bytes: &[u8]| {
        let mut records = Records::of(bytes)?;
        while records.next_record()?.is_some() {}
        Ok(())
    };
    let ends: Vec<usize> = (0..=bytes.len()).filter(|end| whole(&bytes[..*end]).is_ok()).collect();
    assert_eq!(ends, [45, 62, 70, 82], "behind the header and behind each record");
    assert_eq!(whole(&bytes[..81]), Err(PayloadError::Ends));
    // A length beyond the end reserves nothing.
    assert_eq!(Records::of(&[6, 255, 255, 255, 255, 1]).map(|_| ()), Err(PayloadError::Ends));
}

#[test]
fn what_differs_from_what_is_said_is_refused() {
    let base64 = STANDARD.encode(plain());
    let refused = |quality: &str, encoding: &str| {
        let xml = frame("BLOB", &base64, quality);
        Answer::parse(xml.as_bytes(), encoding).expect_err("refused").to_string()
    };
    let good = sound(PLAIN_MD5);
    assert!(refused(&good, "BLOBzip5").starts_with("the encoding is BLOB, expected BLOBzip5"));
    assert!(refused(&good.replace("dd25", "dd26"), "BLOB").starts_with("the MD5 is dd26"));
    assert!(refused(&good.replace("\"82\"", "\"81\""), "BLOB").starts_with("full_size is 81, expected 82"));
    assert!(refused(&good.replace("full_size=\"82\"", ""), "BLOB").contains("no full_size"));
    assert!(refused(&good.replace("\"3\"", "\"4\""), "BLOB").starts_with("records is 4, expected 3"));
    let failed = refused("error=\"1\" message=\"no such table\" md5=\"\" full_size=\"0\"", "BLOB");
    assert_eq!(failed, "the server says of the payload: no such table");
    let xml = frame("BLOB", &base64, &good);
    let global = xml.replace("</frontier>", " <global_error msg=\"it broke\"/>\n</frontier>");
    assert_eq!(Answer::parse(global.as_bytes(), "BLOB"), Err(AnswerError::Global("it broke".to_owned())));
    let cut = Answer::parse(&xml.as_bytes()[..xml.len() - 20], "BLOB");
    assert!(matches!(cut, Err(AnswerError::Frame(_))), "{cut:?}");
    let beyond = Answer::parse(xml.replace("3.42", "3.42é").as_bytes(), "BLOB");
    assert!(matches!(beyond, Err(AnswerError::Frame(_))), "{beyond:?}");
}

#[test]
fn requests_are_what_the_deployed_client_sends() {
    let request = Request::new("select id, name from t").level(Some(5));
    assert_eq!(
        request.target(),
        "type=frontier_request:1:DEFAULT&encoding=BLOBzip5&p1=eNorTs1JTS5RyEzRUchLzE1VSCvKz1UoAQBa6wfD"
    );
    let request = Request::new("select a from t where b = ? and c = ?").bind(&["x", "2"]).ttl(Ttl::Forever).fresh("k9");
    let target = request.target();
    let (head, parameter) = target.split_once("&p1=").expect("a parameter");
    assert_eq!(head, "type=frontier_request:1:DEFAULT&encoding=BLOB");
    let (parameter, rest) = parameter.split_once('&').expect("suffixes");
    assert_eq!(rest, "ttl=forever&freshkey=k9");
    assert!(!parameter.contains(['+', '/', '=']), "{parameter}");
    let base64 = parameter.replace('.', "+").replace('-', "/").replace('_', "=");
    let mut sql = String::new();
    let zipped = STANDARD.decode(base64).expect("base64");
    ZlibDecoder::new(&*zipped).read_to_string(&mut sql).expect("zlib");
    assert_eq!(sql, "select a from t where b = ? and c = ?:x:2");
    assert!(Request::new("select 1").ttl(Ttl::Short).target().ends_with("&ttl=short"));
}

#[test]
fn the_compressed_example_is_read() {
    let xml = frame("BLOBzip5", ZIPPED, &sound(ZIPPED_MD5));
    assert_eq!(Answer::parse(xml.as_bytes(), "BLOBzip5").expect("an answer").payload, plain());
}

#[test]
fn files_and_meta_are_asked_for_in_the_clients_way() {
    let file = Request::file("a b/\u{e9}%.dat").ttl(Ttl::Short);
    let expected = "type=frontier_file:1:DEFAULT&encoding=BLOB&p1=a%2520b/%25C3%25A9%2525.dat&ttl=short";
    assert_eq!(file.target(), expected);
    assert_eq!(Request::meta("frontier_request").target(), "meta=frontier_request:1&encoding=BLOB");
    let certificate = Certificate::from_pem(CERTIFICATE).expect("a certificate");
    let signed = file.signed(&certificate).fresh("k9");
    assert_eq!(signed.target(), expected.replace("&ttl", "&sec=sig&ttl") + "&freshkey=k9");
    let part = "/type=frontier_file:1:DEFAULT&encoding=BLOB&p1=a%20b/%C3%A9%25.dat&sec=sig&ttl=short&freshkey=k9";
    assert_eq!(signed.signed_part(), part);
}

#[test]
fn a_files_payload_is_byte_arrays_and_one_end() {
    let read = |hex: &str, records: &str| {
        let payload = hex::decode(hex.replace(' ', "")).expect("hex");
        let md5 = hex::encode(Md5::digest(&payload));
        let quality = format!("error=\"0\" md5=\"{md5}\" records=\"{records}\" full_size=\"{}\"", payload.len());
        let xml = frame("BLOB", &STANDARD.encode(payload), &quality).replace("frontier_request", "frontier_file");
        Answer::to(&Request::file("a"), xml.as_bytes())
    };
    let answer = read("06 00000002 00ff 06 00000001 41 07", "1").expect("a file");
    assert_eq!((answer.file(), answer.records), (Ok(vec![0, 255, 65]), 1));
    assert_eq!(read("07", "1").and_then(|answer| Ok(answer.file()?)), Ok(Vec::new()), "an empty one");
    for (payload, error) in [
        ("06 00000002 00ff", PayloadError::Ends),
        ("06 00000002 00ff 07 07", PayloadError::File),
        ("01 00000002 07", PayloadError::File),
        ("86 07", PayloadError::File),
    ] {
        assert_eq!(read(payload, "1"), Err(AnswerError::Records(error)), "{payload}");
    }
    assert!(matches!(read("06 00000001 41 07", "2"), Err(AnswerError::Differs { what: "records", .. })));
    let rows = frame("BLOB", &STANDARD.encode(plain()), &sound(PLAIN_MD5));
    let other = Answer::to(&Request::file("a"), rows.as_bytes());
    assert!(matches!(other, Err(AnswerError::Differs { what: "the type", .. })), "{other:?}");
}

#[test]
fn a_signature_is_of_the_request_and_of_what_came() {
    let certificate = Certificate::from_pem(CERTIFICATE).expect("a certificate");
    let request = Request::new("select id, name from t").level(Some(5)).signed(&certificate);
    let signed = |signature: &str| sound(ZIPPED_MD5).replace("md5=", "sig=").replace(ZIPPED_MD5, signature);
    let read = |request: &Request, quality: &str| {
        Answer::to(request, frame("BLOBzip5", ZIPPED, quality).as_bytes()).map(|answer| answer.payload)
    };
    assert_eq!(read(&request, &signed(SIGNATURE)), Ok(plain()));
    let is_refused = |request: &Request, quality: &str| {
        let read = read(request, quality);
        assert!(matches!(read, Err(AnswerError::Signature(_))), "{quality}: {read:?}");
    };
    is_refused(&request, &signed(&SIGNATURE.replacen('I', "J", 1)));
    is_refused(&request, &signed(&SIGNATURE[..40]));
    is_refused(&request, &signed("no base64"));
    is_refused(&request, &signed(""));
    is_refused(&request, &sound(ZIPPED_MD5));
    is_refused(&request.clone().fresh("another"), &signed(SIGNATURE));
    // Neither is another payload taken for the one that was signed.
    let other = frame("BLOBzip5", &ZIPPED.replace("Cfc=", "Cfg="), &signed(SIGNATURE));
    assert!(matches!(Answer::to(&request, other.as_bytes()), Err(AnswerError::Signature(_))));
}

#[test]
fn what_is_no_certificate_of_an_rsa_key_is_told() {
    let of = |pem: &str| Certificate::from_pem(pem).expect_err("none");
    assert!(matches!(of("select 1"), CertificateError::Pem(_)));
    let other = "-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n";
    assert!(matches!(of(other), CertificateError::X509(_)));
    // The bits of the key, emptied.
    let (head, tail) = CERTIFICATE.split_once("A4GNADCBiQKBgQ").expect("the key");
    assert!(matches!(of(&format!("{head}A4GNADCBiQKBgw{tail}")), CertificateError::Key(_)));
}
