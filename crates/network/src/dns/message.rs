//! The part of the DNS message format that a relay needs: whether a message is one query, and whether another is its
//! answer.
//!
//! Only the question section is parsed; records are forwarded unread.

/// LIMIT: a query with a client subnet and cookies fits three times into this.
pub(crate) const LONGEST_QUESTION: usize = 1232;
/// LIMIT: the largest answer over UDP; a larger one must be sent over TCP.
pub(crate) const LONGEST_UDP_ANSWER: usize = 4096;

const HEADER_LEN: usize = 12;
const LONGEST_NAME: usize = 255;
const LONGEST_LABEL: u8 = 63;
const IS_ANSWER: u8 = 0x80;
const OPCODE: u8 = 0x78;
const RECURSION_AVAILABLE: u8 = 0x80;
const SERVER_FAILURE: u8 = 2;

/// A well-formed query of a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    bytes: Vec<u8>,
    /// The end of the question section.
    end: usize,
}

impl Question {
    /// `None` unless the bytes are a standard query with exactly one question, within the size limit.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > LONGEST_QUESTION || bytes.len() < HEADER_LEN {
            return None;
        }
        let is_query = bytes[2] & (IS_ANSWER | OPCODE) == 0;
        let one_question = bytes[4..6] == [0, 1] && bytes[6..8] == [0, 0];
        let end = question_end(bytes)?;
        (is_query && one_question).then(|| Self { bytes: bytes.to_vec(), end })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The query for the upstream server, with another id.
    pub(crate) fn with_id(&self, id: [u8; 2]) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes[..2].copy_from_slice(&id);
        bytes
    }

    /// Converts an upstream answer into the sandbox's answer; `None` if it does not answer this query with this `id`.
    pub(crate) fn accept(&self, id: [u8; 2], mut answer: Vec<u8>) -> Option<Vec<u8>> {
        let is_answer = answer.len() >= HEADER_LEN && answer[..2] == id && answer[2] & IS_ANSWER != 0;
        if !is_answer {
            return None;
        }
        // A server that refuses may omit the question; a repeated question must be the same.
        let repeats = answer[4..6] != [0, 0];
        if repeats
            && !answer.get(HEADER_LEN..self.end)?.eq_ignore_ascii_case(&self.bytes[HEADER_LEN..self.end])
        {
            return None;
        }
        answer[..2].copy_from_slice(&self.bytes[..2]);
        Some(answer)
    }

    /// A SERVFAIL answer, for when no upstream server answered.
    pub(crate) fn failure(&self) -> Vec<u8> {
        let mut bytes = self.bytes[..self.end].to_vec();
        bytes[2] |= IS_ANSWER;
        bytes[3] = RECURSION_AVAILABLE | SERVER_FAILURE;
        bytes[4..HEADER_LEN].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
        bytes
    }
}

/// The end of the first question: labels, a zero, type and class. A question may not be compressed.
fn question_end(bytes: &[u8]) -> Option<usize> {
    let mut at = HEADER_LEN;
    loop {
        let len = *bytes.get(at)?;
        at += 1;
        if len == 0 {
            break;
        }
        if len > LONGEST_LABEL || at - HEADER_LEN > LONGEST_NAME {
            return None;
        }
        at += usize::from(len);
    }
    let end = at + 4;
    (end <= bytes.len()).then_some(end)
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn question(name: &str) -> Vec<u8> {
        let mut bytes = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            bytes.push(u8::try_from(label.len()).unwrap());
            bytes.extend_from_slice(label.as_bytes());
        }
        bytes.extend_from_slice(&[0, 0, 1, 0, 1]);
        bytes
    }

    #[test]
    fn an_answer_is_taken_only_for_its_question_and_id() {
        let asked = Question::parse(&question("example.test")).unwrap();
        let mut answer = asked.with_id([9, 9]);
        answer[2] |= IS_ANSWER;
        assert_eq!(asked.accept([9, 9], answer.clone()).unwrap()[..2], [0x12, 0x34]);
        assert!(asked.accept([9, 8], answer.clone()).is_none());
        assert!(Question::parse(&question("other.test")).unwrap().accept([9, 9], answer.clone()).is_none());
        answer[2] &= !IS_ANSWER;
        assert!(asked.accept([9, 9], answer).is_none());
    }

    #[test]
    fn what_is_not_one_plain_question_is_dropped() {
        let good = question("a.test");
        for len in 0..good.len() {
            assert!(Question::parse(&good[..len]).is_none(), "cut at {len}");
        }
        let mut answer = good.clone();
        answer[2] |= IS_ANSWER;
        let mut two = good.clone();
        two[5] = 2;
        let mut compressed = good.clone();
        compressed[12] = 0xc0;
        let mut long = vec![0u8; LONGEST_QUESTION + 1];
        long[..good.len()].copy_from_slice(&good);
        for bad in [answer, two, compressed, long, vec![63; 600]] {
            assert!(Question::parse(&bad).is_none());
        }
    }

    #[test]
    fn failure_repeats_the_question_and_says_servfail() {
        let asked = Question::parse(&question("a.test")).unwrap();
        let failure = asked.failure();
        assert_eq!(failure[..2], [0x12, 0x34]);
        assert_eq!(failure[3] & 0xf, SERVER_FAILURE);
        assert_eq!(failure[HEADER_LEN..], question("a.test")[HEADER_LEN..]);
    }
}
