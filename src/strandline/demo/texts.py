"""Random strings, many at a time: ids, prose and tool definitions."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.demo.vocabulary import SCHEMAS, TOOLS, WORDS

_WORDS: Final = pa.array([f"{word} " for word in WORDS])
_SHORTEST_WORD: Final = min(len(word.encode()) + 1 for word in WORDS)
_LONGEST_WORD: Final = max(len(word.encode()) + 1 for word in WORDS)
_HEX: Final = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint8).reshape(256, 2)


def hex_ids(rng: np.random.Generator, number: int, digits: int, prefix: str = "") -> pa.Array:
    """Draw ids of the prefix and an even number of hexadecimal digits."""
    chars = np.empty((number, len(prefix) + digits), np.uint8)
    chars[:, : len(prefix)] = np.frombuffer(prefix.encode(), np.uint8)
    chars[:, len(prefix) :] = _draw_hex(rng, number, digits)
    return _to_strings(chars)


def uuids(rng: np.random.Generator, number: int) -> pa.Array:
    """Draw random (version 4) UUIDs in their 36-character form."""
    chars = np.full((number, 36), ord("-"), np.uint8)
    chars[:, [at for at in range(36) if at not in (8, 13, 18, 23)]] = _draw_hex(rng, number, 32)
    chars[:, 14] = ord("4")
    chars[:, 19] = ord("a")
    return _to_strings(chars)


def prose(rng: np.random.Generator, size_bytes: int) -> str:
    """Write words of this many bytes, or up to three fewer where a character would be cut."""
    words = rng.integers(0, len(WORDS), size_bytes // _SHORTEST_WORD + 1, dtype=np.uint8)
    written: bytes = _WORDS.take(pa.array(words)).buffers()[2].to_pybytes()
    return written[:size_bytes].decode(errors="ignore")


def short_prose(rng: np.random.Generator, number: int, at_most_bytes: int) -> pa.Array:
    """Write many texts of a few words each."""
    sizes = np.minimum(rng.geometric(0.25, number), at_most_bytes // _LONGEST_WORD)
    ends = np.concatenate([[0], np.cumsum(sizes)])
    words = _WORDS.take(pa.array(rng.integers(0, len(WORDS), ends[-1], dtype=np.uint8)))
    _, offsets, letters = words.buffers()
    cuts = np.frombuffer(offsets, np.int32)[ends] if ends[-1] else np.zeros(number + 1, np.int32)
    return pc.utf8_rtrim_whitespace(pa.StringArray.from_buffers(number, pa.py_buffer(cuts), letters))


def tool_definitions(rng: np.random.Generator, size_bytes: int) -> str:
    """Write a JSON list of tool definitions of about this size, with at least one definition."""
    words = prose(rng, size_bytes)
    definitions: list[str] = []
    room, read = size_bytes - 1, 0
    for number, length in enumerate(rng.integers(300, 900, size_bytes // 300 + 1).tolist()):
        name = TOOLS[number].name if number < len(TOOLS) else f"mcp__{WORDS[number % len(WORDS)]}__{number}"
        before = f'{{"name":"{name}","description":"'
        after = f'","input_schema":{{"type":"object","properties":{SCHEMAS[number % len(SCHEMAS)]}}}}}'
        room -= len(before) + len(after) + 1
        # If the rest is too small for another definition, this description gets longer.
        length = length if room - length > 500 else max(room, 0)
        definitions.append(f"{before}{words[read : read + length].strip()}{after}")
        room, read = room - length, read + length
        if room <= 0:
            break
    return f"[{','.join(definitions)}]"


def join(*pieces: Any) -> pa.Array:
    """Concatenate strings, string arrays and integers row by row."""
    return pc.binary_join_element_wise(
        *(piece if isinstance(piece, str) else pa.array(piece).cast(pa.string()) for piece in pieces), ""
    )


def _draw_hex(rng: np.random.Generator, number: int, digits: int) -> npt.NDArray[np.uint8]:
    return _HEX[rng.integers(0, 256, (number, digits // 2), dtype=np.uint8)].reshape(number, digits)


def _to_strings(chars: npt.NDArray[np.uint8]) -> pa.Array:
    offsets = np.arange(len(chars) + 1, dtype=np.int32) * chars.shape[1]
    return pa.StringArray.from_buffers(len(chars), pa.py_buffer(offsets), pa.py_buffer(chars))
