//! `[server.packing]`: how full the frames of downloads get.
//!
//! Those of a [packer](headwater_protocol::packer)'s knobs that mean something for frames. They lie in a spool before the first of them is
//! sent, so nobody waits for the first record (`delay_first`) or for records that don't come (`idle_wait`), and no clock is looked at between
//! two records (`priority`).

use headwater_knobs::Knob;
use headwater_knobs::packing::{self, Part, Row};
use headwater_protocol::frame::ROWS_BYTES_TARGET;
use headwater_protocol::packer::{Knobs, OutOfRange, Packing, Records};
use serde::Deserialize;

const ROWS: [Row; 3] = [
    (Part::MessageSize, "server.packing.message_size", "bytes of a full frame of a download, from the next frame on"),
    (Part::Records, "server.packing.records", "records after which a frame goes; automatic: when it is full"),
    (
        Part::Fill,
        "server.packing.fill",
        "at how many percent of message_size a frame goes; 0: by records alone, or full",
    ),
];

/// How full the frames of downloads get. Their bytes are counted before they are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FramePacking {
    /// Bytes of a full frame; no more than every remote takes.
    pub message_size: usize,
    /// Records after which a frame goes.
    #[serde(deserialize_with = "packing::records")]
    pub records: Records,
    /// At how many percent of `message_size` a frame goes; 0: by `records` alone, or when it is full.
    pub fill: u8,
}

impl Default for FramePacking {
    fn default() -> FramePacking {
        let Packing { message_size, records, fill, .. } = Packing::FULL;
        FramePacking { message_size, records, fill }
    }
}

impl FramePacking {
    fn packing(self) -> Packing {
        let FramePacking { message_size, records, fill } = self;
        Packing { message_size, records, fill, ..Packing::FULL }
    }

    /// An error where one is outside of its range.
    pub(crate) fn check(self) -> Result<(), OutOfRange> {
        self.packing().check_within(ROWS_BYTES_TARGET)
    }

    /// The knobs, which stand so at first. They have been checked.
    pub(crate) fn handle(self) -> Knobs {
        Knobs::within(self.packing(), ROWS_BYTES_TARGET)
    }
}

/// Those that can be changed while a server runs: all of them.
pub(crate) fn knobs(handle: &Knobs) -> Vec<Knob> {
    packing::knobs(handle, Packing::FULL, &ROWS)
}
