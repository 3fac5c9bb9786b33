//! Bytes between clients and storage: uploads in step to all replicas, downloads from one.

use tradewind_model::slices::Urgency;

use super::super::REPLICAS;
use super::super::node::{Leg, Token, Work};
use super::super::server::{Job, Part};
use super::Run;
use crate::device_model::{Access, DeviceRequest};

/// Bytes of a connection on a link at once: its socket buffer.
const UNIT_BYTES: u64 = 1 << 20;

impl Run<'_> {
    /// Sends the next unit of an upload to all replicas, if they have received the last one and may buffer it.
    pub(super) fn send_upload(&mut self, client: usize) {
        let size = self.world.objects[self.object(client)].bytes;
        let node = self.active(client).legs[0].node;
        let max_buffered = 2 * self.nodes[node].storage.slice_bytes();
        let active = self.active(client);
        let from = active.sent;
        let bytes = UNIT_BYTES.min(size - from);
        let is_ready = |leg: &super::LegState| {
            leg.received == from && leg.received - leg.written + bytes <= max_buffered
        };
        if bytes == 0 || !active.legs.iter().all(is_ready) {
            return;
        }
        active.sent += bytes;
        for number in 0..REPLICAS {
            let leg = Leg { client, number };
            let node = self.leg(leg).node;
            let request = DeviceRequest { access: Access::Write, offset: 0, bytes };
            let job = Job { request, token: Token::Receive { leg, bytes } };
            self.push(node, Part::LinkIn, stream_urgency(leg, from), job);
        }
    }

    /// A node has received a unit of an upload.
    pub(super) fn received(&mut self, leg: Leg, bytes: u64) {
        self.recorder.received(bytes);
        self.leg(leg).received += bytes;
        self.write_received(leg);
        self.send_upload(leg.client);
    }

    /// Writes a slice, if one is complete or the upload ends.
    fn write_received(&mut self, leg: Leg) {
        let object = self.object(leg.client);
        let size = self.world.objects[object].bytes;
        let state = *self.leg(leg);
        let slice = self.nodes[state.node].storage.slice_bytes();
        let buffered = state.received - state.written;
        if state.is_in_io || buffered == 0 || (buffered < slice && state.received < size) {
            return;
        }
        let (from, to) = (state.written, state.written + buffered.min(slice));
        self.leg(leg).is_in_io = true;
        self.add_task(leg, Work::Write { leg, from, to, next: from });
    }

    /// A slice of an upload is on storage.
    pub(super) fn written(&mut self, leg: Leg, to: u64) {
        let size = self.world.objects[self.object(leg.client)].bytes;
        let state = self.leg(leg);
        state.written = to;
        state.is_in_io = false;
        if to == size {
            self.add_task(leg, Work::WriteMetadata(leg));
        } else {
            self.write_received(leg);
            self.send_upload(leg.client);
        }
    }

    /// Sends what was read, and reads ahead by a slice.
    pub(super) fn pump_download(&mut self, leg: Leg) {
        let object = self.object(leg.client);
        let size = self.world.objects[object].bytes;
        let state = *self.leg(leg);
        let storage = &self.nodes[state.node].storage;
        let buffered = state.read - state.sent;
        if !state.is_in_io && state.read < size && buffered <= storage.slice_bytes() {
            let to = storage.read_slice_end(self.world, object, state.read);
            self.leg(leg).is_in_io = true;
            self.add_task(leg, Work::Read { leg, from: state.read, to });
        }
        if !state.is_sending && buffered > 0 {
            self.leg(leg).is_sending = true;
            let bytes = UNIT_BYTES.min(buffered);
            let request = DeviceRequest { access: Access::Read, offset: 0, bytes };
            let token = Token::Send { leg, bytes, is_first: state.sent == 0 };
            self.push(state.node, Part::LinkOut, stream_urgency(leg, state.sent), Job { request, token });
        }
    }

    /// A slice of a download is in memory.
    pub(super) fn read(&mut self, leg: Leg, to: u64) {
        let state = self.leg(leg);
        state.read = to;
        state.is_in_io = false;
        self.pump_download(leg);
    }

    /// A unit of a download is with the client.
    pub(super) fn sent(&mut self, leg: Leg, bytes: u64) {
        let size = self.world.objects[self.object(leg.client)].bytes;
        self.recorder.sent(bytes);
        let state = self.leg(leg);
        state.sent += bytes;
        state.is_sending = false;
        if state.sent == size {
            self.complete_leg(leg);
        } else {
            self.pump_download(leg);
        }
    }
}

/// The urgency of the part of a stream that starts at an offset.
pub(super) fn stream_urgency(leg: Leg, from: u64) -> Urgency {
    if from == 0 { Urgency::First } else { Urgency::Stream(leg.stream()) }
}
