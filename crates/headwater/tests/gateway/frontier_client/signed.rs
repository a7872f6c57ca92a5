//! Signed answers, which clients take whatever cache they come from.

use headwater_lab::frontier::{Answer, AnswerError, Certificate, Request, Ttl};

use super::{Gateway, SQL, path};

impl Gateway {
    /// By what the client is told of it.
    fn certificate(&self) -> Certificate {
        let (head, pem) = self.raw(&format!("/X/Frontier/{}", Certificate::TARGET), "");
        assert!(head.contains("content-type: text/plain"), "{head}");
        assert_eq!(super::length(&head), Some(pem.len()));
        Certificate::from_pem(&pem).expect("a certificate")
    }
}

#[test]
fn signed_answers_are_taken_by_the_key_of_the_certificate() {
    for gateway in Gateway::both() {
        let certificate = gateway.certificate();
        for level in [None, Some(5)] {
            let request = Request::new(SQL).level(level).ttl(Ttl::Short).fresh("k1").signed(&certificate);
            assert_eq!(gateway.ask(&request).map(|answer| answer.records), Ok(3), "{level:?}");
        }
        std::fs::write(gateway.stage.path("files/a b"), "content").expect("written");
        let file = Request::file("a b").signed(&certificate);
        assert_eq!(gateway.ask(&file).map(|answer| answer.file()), Ok(Ok(b"content".to_vec())));
        let wrong = Request::new("select absent from t").signed(&certificate);
        assert!(matches!(gateway.ask(&wrong), Err(AnswerError::Payload(_))));
    }
}

#[test]
fn what_was_not_signed_so_is_refused() {
    let gateway = Gateway::postgres();
    let request = Request::new(SQL).signed(&gateway.certificate());
    let body = |request: &Request| gateway.raw(&path(request), "").1;
    let signed = body(&request);
    Answer::to(&request, signed.as_bytes()).expect("as it came");
    let is_refused = |request: &Request, body: &str| {
        let taken = Answer::to(request, body.as_bytes());
        assert!(matches!(taken, Err(AnswerError::Signature(_))), "{taken:?}: {body}");
    };
    // One letter of it is another.
    let (before, behind) = signed.split_once("sig=\"").expect("a signature");
    let other = if behind.starts_with('A') { 'B' } else { 'A' };
    is_refused(&request, &format!("{before}sig=\"{other}{}", &behind[1..]));
    // Rows of another answer, which has all else right.
    let another = body(&Request::new("select id, name from t order by id desc").signed(&gateway.certificate()));
    let (rows, _) = another.split_once("sig=\"").expect("a signature");
    is_refused(&request, &format!("{rows}sig=\"{behind}"));
    // The answer to another request, and one that nobody has signed.
    is_refused(&request.clone().fresh("k2"), &signed);
    is_refused(&request, &body(&Request::new(SQL)));
}
