//! The socket between the runner and the guardian, as either side sees it: frames with descriptors.
//!
//! A frame is a length of four bytes, little endian, and that many bytes. Descriptors travel with the first byte of
//! the frame that they are for.
//!
//! I1: nothing here blocks, and nothing raises SIGPIPE.
//!
//! I2: a frame with descriptors is sent in a call of its own, and the system ends a read at a message that carries
//! some. So the descriptors that one read brings, or fails to bring (`CTRUNC`: the limit of open files), are those of
//! exactly one frame, and come in the order of these frames.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The most descriptors that a frame has.
pub(super) const MOST_FDS: usize = 5;
/// The longest frame.
pub(super) const MOST_BYTES: usize = 16 << 20;
/// How much is read at a time.
const CHUNK: usize = 64 << 10;
/// Why the system refused to take the descriptors of a frame.
pub(super) struct Refused {
    /// The frame's token.
    pub(super) token: u64,
    /// The system's answer.
    pub(super) errno: Errno,
}

#[derive(Debug)]
struct Packet {
    bytes: Vec<u8>,
    at: usize,
    fds: Vec<OwnedFd>,
    token: u64,
}

/// One end of the socket.
#[derive(Debug)]
pub(super) struct Channel {
    socket: OwnedFd,
    out: VecDeque<Packet>,
    /// What was read; frames before `at` are done with.
    bytes: Vec<u8>,
    at: usize,
    arrivals: VecDeque<Vec<OwnedFd>>,
}

impl Channel {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, out: VecDeque::new(), bytes: Vec::new(), at: 0, arrivals: VecDeque::new() }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether something waits to be written.
    pub(super) fn wants_write(&self) -> bool {
        !self.out.is_empty()
    }

    /// The bytes that wait to be written.
    pub(super) fn backlog(&self) -> usize {
        self.out.iter().map(|packet| packet.bytes.len() - packet.at).sum()
    }

    /// Queues a frame. `token` is told if its descriptors are refused.
    pub(super) fn push(&mut self, frame: &[u8], fds: Vec<OwnedFd>, token: u64) {
        match self.out.back_mut() {
            Some(last) if fds.is_empty() && last.fds.is_empty() => last.bytes.extend(frame),
            _ => self.out.push_back(Packet { bytes: frame.to_vec(), at: 0, fds, token }),
        }
    }

    /// Writes what there is and what the socket takes.
    ///
    /// # Errors
    /// The other side is gone.
    pub(super) fn flush(&mut self) -> Result<Option<Refused>, Errno> {
        while let Some(packet) = self.out.front_mut() {
            let fds: Vec<BorrowedFd<'_>> = packet.fds.iter().map(AsFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST_FDS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() {
                let fits = control.push(SendAncillaryMessage::ScmRights(&fds));
                debug_assert!(fits, "no frame has more than {MOST_FDS} descriptors");
            }
            let part = [IoSlice::new(&packet.bytes[packet.at..])];
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(&self.socket, &part, &mut control, flags) {
                Ok(count) => {
                    packet.at += count;
                    packet.fds.clear();
                    if packet.at == packet.bytes.len() {
                        self.out.pop_front();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                // What is short, is short because of the descriptors; without them it would wait.
                Err(errno @ (Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM | Errno::MFILE))
                    if !packet.fds.is_empty() =>
                {
                    let token = packet.token;
                    self.out.pop_front();
                    return Ok(Some(Refused { token, errno }));
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(None)
    }

    /// Reads what there is; answers whether the other side is still there.
    ///
    /// # Errors
    /// What the system answers.
    pub(super) fn fill(&mut self) -> Result<bool, Errno> {
        if self.at > 0 {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        loop {
            let end = self.bytes.len();
            self.bytes.resize(end + CHUNK, 0);
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST_FDS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut part = [IoSliceMut::new(&mut self.bytes[end..])];
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let got = recvmsg(&self.socket, &mut part, &mut control, flags);
            let count = got.as_ref().map_or(0, |got| got.bytes);
            self.bytes.truncate(end + count);
            let got = match got {
                Ok(got) => got,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(true),
                Err(errno) => return Err(errno),
            };
            let mut arrival = Vec::new();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    arrival.extend(fds);
                }
            }
            if !arrival.is_empty() || got.flags.contains(ReturnFlags::CTRUNC) {
                self.arrivals.push_back(arrival);
            }
            if count == 0 {
                return Ok(false);
            }
            // Without descriptors a short read means that there is no more: one call less.
            if count < CHUNK && self.arrivals.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Whether a whole frame is there.
    fn whole(&self) -> Option<usize> {
        let rest = &self.bytes[self.at..];
        let length = u32::from_le_bytes(*rest.first_chunk()?) as usize;
        (rest.len() - 4 >= length).then_some(length)
    }

    /// The next frame, if it is there whole.
    pub(super) fn next(&mut self) -> Option<&[u8]> {
        self.next_with_fds().map(|(frame, _)| frame)
    }

    /// The next frame, and the descriptors of it and later ones: a frame that has some takes the first. They are
    /// fewer than it says, where the limit of open files kept them out.
    pub(super) fn next_with_fds(&mut self) -> Option<(&[u8], &mut VecDeque<Vec<OwnedFd>>)> {
        let length = self.whole()?;
        let from = self.at + 4;
        self.at = from + length;
        Some((&self.bytes[from..from + length], &mut self.arrivals))
    }
}
