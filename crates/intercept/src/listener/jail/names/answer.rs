//! Parses a DNS query and makes the response, without I/O.

use std::net::{Ipv4Addr, Ipv6Addr};

use hickory_proto::op::{Edns, Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};

use super::table::{SyntheticNames, TTL};
use crate::host::Host;

/// Answers a query (RFC 1035); `None` for a message without a whole header, or that is itself a response.
///
/// A and AAAA of every host name get the name's synthetic addresses, whether or not the name exists: it is resolved when a
/// connection to it is allowed. `localhost` gets loopback (RFC 6761). Other types have no data, so that no client learns of
/// HTTP/3 or of another address by SVCB, and no data comes in by TXT. A name that is no host name does not exist.
pub fn answer(query: &[u8], names: &SyntheticNames) -> Option<Vec<u8>> {
    let &[id0, id1, flags, _, count0, count1, ..] = query.first_chunk::<HEADER_LEN>()?;
    if flags & RESPONSE_FLAG != 0 {
        return None;
    }
    let parsed = match u16::from_be_bytes([count0, count1]) {
        1 => Message::from_vec(query).ok(),
        // Programs send exactly one question. The library would allocate memory for the number claimed.
        _ => None,
    };
    let response = parsed.map_or_else(
        || {
            let id = u16::from_be_bytes([id0, id1]);
            Message::error_msg(id, OpCode::Query, ResponseCode::FormErr)
        },
        |query| respond(&query, names),
    );
    response.to_vec().ok()
}

fn respond(query: &Message, names: &SyntheticNames) -> Message {
    let mut response = Message::response(query.metadata.id, query.metadata.op_code);
    response.metadata.recursion_desired = query.metadata.recursion_desired;
    response.metadata.recursion_available = true;
    let code = match query.queries.as_slice() {
        _ if query.metadata.op_code != OpCode::Query => ResponseCode::NotImp,
        [question] => {
            response.add_query(question.clone());
            match find(question, names) {
                Ok(data) => {
                    let ttl = TTL.as_secs() as u32;
                    let record = |data| Record::from_rdata(question.name().clone(), ttl, data);
                    response.add_answers(data.map(record));
                    ResponseCode::NoError
                }
                Err(code) => code,
            }
        }
        _ => ResponseCode::FormErr,
    };
    response.metadata.response_code = code;
    if let Some(edns) = &query.edns {
        let mut response_edns = Edns::new();
        response_edns.set_max_payload(MAX_PAYLOAD);
        if edns.version() > 0 {
            response.answers.clear();
            response.metadata.response_code = ResponseCode::BADVERS;
        }
        response.set_edns(response_edns);
    }
    response
}

/// Finds the data for a question; `None` for a type that the name does not have.
fn find(question: &Query, names: &SyntheticNames) -> Result<Option<RData>, ResponseCode> {
    if question.query_class() != DNSClass::IN {
        return Err(ResponseCode::Refused);
    }
    // `to_ascii` escapes bytes that no host name has, so a label with such bytes is no host name either.
    let host = Host::parse(&question.name().to_ascii()).map_err(|_| ResponseCode::NXDomain)?;
    let name = host.as_name().ok_or(ResponseCode::NXDomain)?;
    let is_localhost = name == "localhost" || name.ends_with(".localhost");
    let table_full = ResponseCode::ServFail;
    match question.query_type() {
        RecordType::A if is_localhost => Ok(Some(RData::A(A(Ipv4Addr::LOCALHOST)))),
        RecordType::AAAA if is_localhost => Ok(Some(RData::AAAA(AAAA(Ipv6Addr::LOCALHOST)))),
        RecordType::A => {
            let ip = names.v4(&host).ok_or(table_full)?;
            tracing::debug!(name, address = %ip, "name looked up in the jail");
            Ok(Some(RData::A(A(ip))))
        }
        RecordType::AAAA if names.has_v6() => {
            let ip = names.v6(&host).ok_or(table_full)?;
            tracing::debug!(name, address = %ip, "name looked up in the jail");
            Ok(Some(RData::AAAA(AAAA(ip))))
        }
        _ => Ok(None),
    }
}

/// Bytes of a message's header (RFC 1035, section 4.1.1).
const HEADER_LEN: usize = 12;
/// The flag QR, in the third byte.
const RESPONSE_FLAG: u8 = 0x80;
/// Bytes of a datagram that passes every network (DNS flag day 2020). All responses are shorter.
const MAX_PAYLOAD: u16 = 1232;

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use hickory_proto::op::MessageType;
    use hickory_proto::rr::Name;
    use proptest::prelude::*;

    use super::super::range::NameRanges;
    use super::super::table::NameLookup;
    use super::*;

    fn query(name: &str, kind: RecordType) -> Message {
        let mut query = Message::new(7, MessageType::Query, OpCode::Query);
        query.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        query
    }

    fn ask(query: &Message, names: &SyntheticNames) -> Message {
        let response = answer(&query.to_vec().unwrap(), names).unwrap();
        assert!(response.len() <= 512);
        Message::from_vec(&response).unwrap()
    }

    fn address(response: &Message) -> Option<IpAddr> {
        response.answers.first()?.data.ip_addr()
    }

    #[test]
    fn names_have_addresses_and_nothing_else() {
        let names = SyntheticNames::new(NameRanges::default(), true);
        let host = Host::parse("a.test").unwrap();
        for kind in [RecordType::A, RecordType::AAAA] {
            let response = ask(&query("A.test.", kind), &names);
            assert_eq!(response.metadata.response_code, ResponseCode::NoError);
            let ip = address(&response).unwrap();
            assert_eq!(names.find(ip), NameLookup::Name(host.clone()));
        }
        for kind in [
            RecordType::TXT,
            RecordType::HTTPS,
            RecordType::SVCB,
            RecordType::MX,
            RecordType::PTR,
            RecordType::ANY,
        ] {
            let response = ask(&query("secret.a.test.", kind), &names);
            let code = response.metadata.response_code;
            assert_eq!(
                (code, response.answers.len()),
                (ResponseCode::NoError, 0),
                "{kind}"
            );
        }
    }

    #[test]
    fn without_ipv6_there_is_no_aaaa() {
        let response = ask(
            &query("a.test.", RecordType::AAAA),
            &SyntheticNames::new(NameRanges::default(), false),
        );
        assert_eq!(address(&response), None);
        assert_eq!(response.metadata.response_code, ResponseCode::NoError);
    }

    #[test]
    fn localhost_is_loopback_and_a_name_that_is_no_host_does_not_exist() {
        let names = SyntheticNames::new(NameRanges::default(), true);
        let response = ask(&query("x.localhost.", RecordType::A), &names);
        assert_eq!(address(&response), Some([127, 0, 0, 1].into()));
        for no_host in ["192.0.2.1.", "."] {
            let response = ask(&query(no_host, RecordType::A), &names);
            assert_eq!(
                response.metadata.response_code,
                ResponseCode::NXDomain,
                "{no_host}"
            );
        }
        let mut with_space = query("a.test.", RecordType::A);
        let labels = Name::from_labels([&b"a b"[..], b"test"]).unwrap();
        with_space.queries[0].set_name(labels);
        let code = ask(&with_space, &names).metadata.response_code;
        assert_eq!(code, ResponseCode::NXDomain);
    }

    #[test]
    fn messages_other_than_one_valid_query_get_an_error_or_no_response() {
        let names = SyntheticNames::new(NameRanges::default(), true);
        let mut update = query("a.test.", RecordType::A);
        update.metadata.op_code = OpCode::Update;
        let code = ask(&update, &names).metadata.response_code;
        assert_eq!(code, ResponseCode::NotImp);
        let mut response = query("a.test.", RecordType::A);
        response.metadata.message_type = MessageType::Response;
        assert_eq!(answer(&response.to_vec().unwrap(), &names), None);
        let mut two_questions = query("a.test.", RecordType::A);
        two_questions.add_query(two_questions.queries[0].clone());
        let code = ask(&two_questions, &names).metadata.response_code;
        assert_eq!(code, ResponseCode::FormErr);
        assert_eq!(answer(&[0; 11], &names), None);
        let garbage = [&[0, 9, 0, 0, 0, 1][..], &[0xff; 30]].concat();
        let response = Message::from_vec(&answer(&garbage, &names).unwrap()).unwrap();
        assert_eq!(
            (response.metadata.id, response.metadata.response_code),
            (9, ResponseCode::FormErr)
        );
    }

    proptest! {
        #[test]
        fn any_bytes_get_a_short_response_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let response = answer(&bytes, &SyntheticNames::new(NameRanges::default(), true));
            prop_assert!(response.is_none_or(|response| response.len() <= 1232));
        }
    }
}
