"""Traces: the event stream as lines of JSON, written, read, and read out of order.

The first line is the header (`RunStarted`), then one JSON object a line, compact, with a `kind`
key. Floats have 4 decimals; infinities and NaN are null. A `Vocab` record gives the texts of
token ids before the event they first appear in, so that no reader needs a tokenizer; only the
header, which has to be first, precedes the record for its own ids:

    {"kind":"Vocab","tokens":{"123":" the","456":{"hex":"f09f98"}}}

A text is a string; bytes that are not UTF-8 by themselves are an object with their hex digits.
Readers ignore unknown keys, skip unknown kinds, tolerate a cut last line, and refuse another
major schema version.
"""

from dartree_core.trace.index import TraceIndex, TraceTurn
from dartree_core.trace.reader import EventDecoder, TraceReader
from dartree_core.trace.records import (
    Recorder,
    decode_vocab,
    encode_vocab,
    records,
    to_line,
    token_ids,
    vocab_line,
)
from dartree_core.trace.skim import Skimmed
from dartree_core.trace.writer import TraceWriter, open_private

__all__ = [
    "EventDecoder",
    "Recorder",
    "Skimmed",
    "TraceIndex",
    "TraceReader",
    "TraceTurn",
    "TraceWriter",
    "decode_vocab",
    "encode_vocab",
    "open_private",
    "records",
    "to_line",
    "token_ids",
    "vocab_line",
]
