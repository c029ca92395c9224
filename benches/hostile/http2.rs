//! The few HTTP/2 frames of a peer that asks for much and takes nothing: its window is 0, so every
//! answer waits at the server.

use std::io::Write;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM_AND_HEADERS: u8 = 5;
const INITIAL_WINDOW_SIZE: u16 = 4;

/// The whole of what such a peer sends: settings, and `streams` requests for one path.
pub fn greedy_peer(path: &str, key: &str, streams: u32) -> Vec<u8> {
    let mut bytes = PREFACE.to_vec();
    let mut settings = INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
    settings.extend(0u32.to_be_bytes());
    frame(&mut bytes, SETTINGS, 0, 0, &settings);
    let bearer = format!("Bearer {key}");
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "bench"),
        (":path", path),
        ("authorization", &bearer),
    ];
    let mut block = Vec::new();
    for (name, value) in fields {
        // A literal that is not indexed, without Huffman's code.
        block.push(0);
        text(&mut block, name);
        text(&mut block, value);
    }
    for stream in 0..streams {
        frame(&mut bytes, HEADERS, END_STREAM_AND_HEADERS, stream * 2 + 1, &block);
    }
    bytes
}

fn frame(bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    bytes.extend(&u32::try_from(payload.len()).unwrap().to_be_bytes()[1..]);
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.write_all(payload).unwrap();
}

/// A string of HPACK that is shorter than 127 bytes.
fn text(block: &mut Vec<u8>, text: &str) {
    assert!(text.len() < 127);
    block.push(u8::try_from(text.len()).unwrap());
    block.extend(text.as_bytes());
}
