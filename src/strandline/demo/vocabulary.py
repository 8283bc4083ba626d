"""The words, names and tool definitions of the made-up conversations.

No value needs escaping in JSON, so arguments and definitions can be joined from pieces."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Client:
    name: str
    provider: str
    model: str
    small_model: str
    is_conversation_known: bool = True


@dataclass(frozen=True)
class Tool:
    """A tool. Its arguments are a file's path between `before` and `after`."""

    name: str
    before: str
    after: str


GATEWAYS: Final = ["gw-eu-1", "gw-us-1", "gw-us-2"]

CLIENTS: Final = [
    Client("claude-code", "anthropic", "claude-opus-4-1", "claude-3-5-haiku-latest"),
    Client("claude-code", "anthropic", "claude-sonnet-4-5", "claude-3-5-haiku-latest"),
    Client("codex-cli", "openai", "gpt-5-codex", "gpt-5-mini"),
    Client("gemini-cli", "google", "gemini-2.5-pro", "gemini-2.5-flash"),
    Client("python-sdk", "openai", "gpt-4.1", "gpt-4.1-mini", is_conversation_known=False),
]

TOOLS: Final = [
    Tool("Read", '{"file_path":"', '","limit":400}'),
    Tool("Edit", '{"file_path":"', '","old_string":"return None","new_string":"return result"}'),
    Tool("Write", '{"file_path":"', '","content":"# to be written"}'),
    Tool("Bash", '{"command":"python -m pytest -q ', '","timeout":120000}'),
    Tool("Grep", '{"pattern":"TODO|FIXME","path":"', '","output_mode":"files_with_matches"}'),
    Tool("WebFetch", '{"url":"https://docs.example.com', '","prompt":"How is this configured?"}'),
]

SCHEMAS: Final = [
    '{"file_path":{"type":"string"}},"required":["file_path"]',
    '{"command":{"type":"string"},"timeout":{"type":"integer","minimum":0}},"required":["command"]',
    '{"pattern":{"type":"string"},"glob":{"type":"string"},"limit":{"type":"integer"}},"required":["pattern"]',
    '{"query":{"type":"string"},"tags":{"type":"array","items":{"type":"string"}}},"required":["query"]',
]

# 128 words, so that seven random bits choose one; each is 4 to 9 bytes long.
_WORDS: Final = """
about account adapter after again alert always append archive array async backend balance batch before binary
branch broken bucket buffer build cache café cancel change check client cluster column commit compare config
context counter cursor daemon dataset default delete deploy detect digest driver duplicate empty encode error
event expected export failed fetch field filter finally format função garbage gateway guard handler header
history import index insert instead invoice iterator journal kernel latency ledger library limit listen loader
manifest marker memory merge message metric migrate missing module naïve network nothing notify number
offset operator order output packet parser partition patch payload pending pipeline policy prefix process
query queue reader record refactor region release replay request result retry rollback router schema segment
server shard should signal snapshot source straße stream
"""
WORDS: Final = _WORDS.split()

AREAS: Final = ["api", "auth", "billing", "cli", "core", "export", "ingest", "search", "storage", "web"]
FILES: Final = [f"src/{area}/{noun}.py" for area in AREAS for noun in WORDS[:120:5]]

OWNERS: Final = ["amber", "basalt", "cedar", "delta", "ember", "fjord", "granite", "harbor"]
PRODUCTS: Final = ["atlas", "beacon", "compass", "dynamo", "engine", "forge", "gazette", "horizon"]


def repository(number: int) -> str:
    """The name of repository `number`; each number has another name."""
    name = f"{OWNERS[number % 8]}-{PRODUCTS[number // 8 % 8]}"
    return name if number < 64 else f"{name}-{number // 64}"
