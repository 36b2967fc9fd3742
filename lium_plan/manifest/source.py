"""YAML text to a tree that knows where everything was written.

Owns the meaning of YAML here: that of version 1.2, without traps. Built on PyYAML's parser events alone; tags,
resolution and merging are ours. A plain scalar is a number, boolean or null only when it is plainly one: `12`, `-3`,
`2.50`, `true`, `false`, `null`, `~`, or nothing. All else is the string it looks like: `NO`, `on`, `22:22`, `0755`,
`0o17`, `1_000`, `2024-01-16`, `1e3`, `.5`, `True`. Numbers keep their text (`3.10`), so that a field that wants a
string gets what was written. Keys are always strings.

Refuses duplicate keys (also those that a merge `<<` brings in a second time), tabs outside of scalars, several
documents, tags, anything but UTF-8, characters that can't be seen or that turn text around, and everything that is
too big or too deep; each with its place.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISFIFO, S_ISREG

import yaml

from lium_plan.diagnostics import Diagnostic, Diagnostics, Position, error
from lium_plan.garbage import collection_paused
from lium_plan.kinds.values import MAX_DIGITS, PlainFloat, shown
from lium_plan.manifest.document import Document, Map, Place, Seq, place_of

MAX_BYTES = 16 * 2**20
MAX_NODES = 1_500_000
MAX_REPEATED = 500_000
"""Nodes that aliases may add to those that were written."""
MAX_DEPTH = 64
SHORT = 40
"""Characters up to which equal texts are kept once."""


_WHOLE = f"[1-9][0-9]{{0,{MAX_DIGITS - 1}}}"
_INTEGER = re.compile(f"-?{_WHOLE}|0")
_FLOAT = re.compile(rf"-?(?:0|{_WHOLE})\.[0-9]{{1,{MAX_DIGITS}}}")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_ZERO_WIDTH = re.compile("[\u00ad\u200b-\u200d\u2060\ufeff]")


def read(path: Path, name: str, diagnostics: Diagnostics, *, private: bool = False) -> Document | None:
    """The file's tree; its root is None when it is empty. None, and why in `diagnostics`, when it can't be read."""
    data = read_bytes(path, name, diagnostics)
    return None if data is None else parse(data, path, name, diagnostics, private=private)


def _without_waiting(path: str, flags: int) -> int:
    """For `open`: a pipe that nobody writes into is opened at once."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_bytes(path: Path, name: str, diagnostics: Diagnostics, *, limit: int = MAX_BYTES) -> bytes | None:
    place = Position(name, 1, 1)
    try:
        with open(path, "rb", opener=_without_waiting) as stream:
            status = os.fstat(stream.fileno())
            if not S_ISREG(status.st_mode):
                what = "is a pipe, no ordinary file" if S_ISFIFO(status.st_mode) else "is no ordinary file"
                diagnostics.add(error("unreadable-file", f"{name} {what}", position=place))
                return None
            data = stream.read(limit + 1) if status.st_size <= limit else b" " * (limit + 1)
    except OSError as fault:
        reason = fault.strerror or str(fault)
        diagnostics.add(error("unreadable-file", f"can't read {name}: {reason}", position=place))
        return None
    except ValueError:
        diagnostics.add(error("unreadable-file", f"{shown(name)} is no path", position=None))
        return None
    if len(data) > limit:
        diagnostics.add(error("too-big", f"{name} is bigger than {limit // 2**20} MiB", position=place))
        return None
    return data


def parse(data: bytes, path: Path, name: str, diagnostics: Diagnostics, *, private: bool = False) -> Document | None:
    text = _decode(data, path, name, diagnostics)
    if text is None:
        return None
    document = Document(name, path, text, private=private)
    before = len(diagnostics.errors)
    _check_characters(document, diagnostics)
    if len(diagnostics.errors) > before:
        return None
    loader = yaml.CLoader if yaml.__with_libyaml__ else yaml.Loader
    composer = _Composer(document, yaml.parse(text, Loader=loader), diagnostics, watch_tabs="\t" in text)
    try:
        with collection_paused():
            document.root = composer.document_root()
    except _Stop as stop:
        diagnostics.add(stop.diagnostic)
        return None
    except yaml.MarkedYAMLError as fault:
        diagnostics.add(_syntax(document, fault))
        return None
    except yaml.YAMLError as fault:
        diagnostics.add(document.error("yaml-syntax", f"not YAML: {str(fault).splitlines()[0]}", (0, 0)))
        return None
    composer.check_tabs()
    return document


def _decode(data: bytes, path: Path, name: str, diagnostics: Diagnostics) -> str | None:
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        diagnostics.add(
            error(
                "bad-encoding",
                "the file begins with a byte order mark",
                position=Position(name, 1, 1),
                hint="save it as UTF-8 without BOM",
            )
        )
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as fault:
        good = data[: fault.start].decode("utf-8")
        document = Document(name, path, good, private=True)
        place = place_of(good, len(good))
        diagnostics.add(document.error("bad-encoding", "not UTF-8", place, hint="save the file as UTF-8"))
        return None


def _check_characters(document: Document, diagnostics: Diagnostics) -> None:
    if document.text.isascii() and not _UNSEEN.search(document.text):
        return
    match = _UNSEEN.search(document.text)
    if match is not None:
        code_point = f"U+{ord(match[0]):04X}"
        place = place_of(document.text, match.start())
        message = f"the character {code_point} can't be seen, or turns the text around it"
        hint = f'inside double quotes it can be written "\\u{ord(match[0]):04x}"'
        diagnostics.add(document.error("bad-character", message, place, hint=hint))


def _syntax(document: Document, fault: yaml.MarkedYAMLError) -> Diagnostic:
    mark = fault.problem_mark or fault.context_mark
    problem = fault.problem or "not YAML"
    if "quoted scalar" in (fault.context or "") and "found unexpected" in problem and fault.context_mark is not None:
        opened = fault.context_mark
        return document.error("yaml-syntax", "this quote is never closed", (opened.line, opened.column))
    place = (0, 0) if mark is None else (mark.line, mark.column)
    line = document.line(place[0])
    hint = None
    if line[place[1] : place[1] + 1] == "\t" or "\t" in line[: len(line) - len(line.lstrip())]:
        return document.error("yaml-tab", "a tab where YAML wants spaces", place, hint="indent with spaces")
    if "${{" in line:
        hint = "put the value in quotes: inside [ ] and { }, or before ': ', ${{ }} would be YAML"
    elif "mapping values are not allowed" in problem:
        hint = "put a value that contains ': ' in quotes, or check the indentation"
    elif line[place[1] : place[1] + 1] in ("@", "`", "%", "*", "&", "!"):
        hint = "put the value in quotes"
    context = f" {fault.context}" if fault.context else ""
    return document.error("yaml-syntax", f"{problem}{context}", place, hint=hint)


class _Stop(Exception):
    def __init__(self, diagnostic: Diagnostic) -> None:
        self.diagnostic = diagnostic


def _at(event: yaml.Event) -> Place:
    mark = event.start_mark
    return (0, 0) if mark is None else (mark.line, mark.column)


def _span(event: yaml.Event) -> tuple[int, int]:
    start, end = event.start_mark, event.end_mark
    return (0, 0) if start is None or end is None else (start.index, end.index)


_SPECIAL_KEYS = ("", "~", "null", "<<")
"""What they are depends on whether they stand in quotes."""


class _Composer:
    """Events to tree. What can be gone on after is added to `diagnostics`; the rest raises `_Stop`."""

    def __init__(
        self, document: Document, events: Iterator[yaml.Event], diagnostics: Diagnostics, *, watch_tabs: bool
    ) -> None:
        self.document = document
        self.next_event = events.__next__
        self.diagnostics = diagnostics
        self.watch_tabs = watch_tabs
        self.scalars: list[tuple[int, int]] = []
        self.anchors: dict[str, object] = {}
        self.open_anchors: set[str] = set()
        self.sizes: dict[int, tuple[int, int]] = {}
        """Nodes below and levels below, of each anchored container."""
        self.nodes = 0
        self.repeated = 0
        self.sound_keys: set[str] = set()
        """Keys that were looked at: a big manifest says the same ones over and over."""

    def stop(self, code: str, message: str, place: Place, *, hint: str | None = None) -> _Stop:
        return _Stop(self.document.error(code, message, place, hint=hint))

    def report(self, code: str, message: str, place: Place, *, hint: str | None = None) -> None:
        self.diagnostics.add(self.document.error(code, message, place, hint=hint))

    def document_root(self) -> object:
        root: object = None
        seen = False
        while True:
            event = self.next_event()
            if isinstance(event, yaml.StreamEndEvent):
                return root
            if isinstance(event, yaml.DocumentStartEvent):
                if seen:
                    raise self.stop("yaml-documents", "a second document ('---'): one per file", _at(event))
                if event.version not in (None, (1, 2)):
                    raise self.stop("yaml-version", "only YAML 1.2 is understood", _at(event))
                seen = True
                root = self.node(self.next_event(), 1)[0]

    def node(self, event: yaml.Event, depth: int) -> tuple[object, int, int]:
        """The value, the nodes in it, and its levels."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise self.stop("too-big", f"more than {MAX_NODES} values in one file", _at(event))
        if isinstance(event, yaml.ScalarEvent):
            return self.scalar(event), 1, 0
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event, depth)
        if depth > MAX_DEPTH:
            raise self.stop("too-deep", f"nested deeper than {MAX_DEPTH} levels", _at(event))
        if not isinstance(event, yaml.CollectionStartEvent):
            raise self.stop("yaml-syntax", "expected a value", _at(event))
        self.check_tag(event)
        anchor = event.anchor
        if anchor is not None:
            self.open_anchors.add(anchor)
        value: Map | Seq
        if isinstance(event, yaml.MappingStartEvent):
            value, size, levels = self.mapping(event, depth)
        else:
            value, size, levels = self.sequence(event, depth)
        if anchor is not None:
            self.open_anchors.discard(anchor)
            self.anchors[anchor] = value
            self.sizes[id(value)] = (size, levels)
        return value, size, levels

    def scalar(self, event: yaml.ScalarEvent) -> object:
        if event.tag is not None:
            self.check_tag(event)
        if self.watch_tabs:
            self.scalars.append(_span(event))
        # A big manifest says the same things over and over.
        text = sys.intern(str(event.value)) if len(event.value) <= SHORT else str(event.value)
        value: object = text
        # `implicit[0]` is True for plain scalars only.
        if event.implicit[0]:
            value = resolve(text)
        if event.anchor is not None:
            self.anchors[event.anchor] = value
        return value

    def check_tag(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        if event.tag is not None:
            self.report("yaml-tag", f"the tag {shown(event.tag)} means nothing here", _at(event), hint="remove it")

    def alias(self, event: yaml.AliasEvent, depth: int) -> tuple[object, int, int]:
        name = event.anchor
        if name in self.open_anchors:
            raise self.stop("yaml-alias", f"'*{name}' stands inside of itself", _at(event))
        if name not in self.anchors:
            raise self.stop("yaml-alias", f"'*{name}': no anchor '&{name}' before it", _at(event))
        value = self.anchors[name]
        size, levels = self.sizes.get(id(value), (1, 0)) if isinstance(value, (Map, Seq)) else (1, 0)
        self.repeated += size
        if self.repeated > MAX_REPEATED:
            raise self.stop("too-big", f"aliases repeat more than {MAX_REPEATED} values", _at(event))
        if depth + levels > MAX_DEPTH:
            raise self.stop("too-deep", f"nested deeper than {MAX_DEPTH} levels", _at(event))
        return value, size, levels

    def sequence(self, start: yaml.Event, depth: int) -> tuple[Seq, int, int]:
        found = Seq(self.document, _at(start))
        size, levels = 1, 0
        while not isinstance(event := self.next_event(), yaml.SequenceEndEvent):
            value, below, deep = self.node(event, depth + 1)
            size += below
            levels = max(levels, deep)
            found.append(value)
            found.places.append((self.document, _at(event)))
        return found, size, levels + 1

    def mapping(self, start: yaml.Event, depth: int) -> tuple[Map, int, int]:
        document = self.document
        found = Map(document, _at(start))
        merges: list[tuple[object, Place]] = []
        size, levels = 1, 0
        while not isinstance(event := self.next_event(), yaml.MappingEndEvent):
            key, is_merge = self.key(event)
            key_at = _at(event)
            value_event = self.next_event()
            value, below, deep = self.node(value_event, depth + 1)
            size += below + 1
            levels = max(levels, deep)
            if key is None:
                continue
            if is_merge:
                merges.append((value, key_at))
            elif key in found.places:
                self.duplicate(key, found, key_at)
            else:
                found[key] = value
                line, column = _at(value_event)
                # One number for one line: a big manifest holds a place for each of its words.
                value_at = (key_at[0] if line == key_at[0] else line, column)
                found.places[key] = (document, key_at, value_at)
        for value, at in merges:
            self.merge(found, value, at)
        return found, size, levels + 1

    def key(self, event: yaml.Event) -> tuple[str | None, bool]:
        """The key, None when it was refused, and whether it is a merge."""
        if not isinstance(event, yaml.ScalarEvent):
            raise self.stop("bad-key", "a key must be a string", _at(event), hint="put it in quotes")
        if event.tag is not None:
            self.check_tag(event)
        if self.watch_tabs:
            self.scalars.append(_span(event))
        key = sys.intern(str(event.value))
        if event.anchor is not None:
            self.anchors[event.anchor] = key
        plain = bool(event.implicit[0])
        if key in self.sound_keys:
            return key, False
        if plain and key in ("", "~", "null"):
            self.report("bad-key", f"the key {shown(key)} is YAML's null", _at(event), hint="put it in quotes")
            return None, False
        if not key.isprintable() or _ZERO_WIDTH.search(key):
            self.report("bad-character", f"the key {shown(key)} has characters that can't be seen", _at(event))
            return None, False
        if key not in _SPECIAL_KEYS:
            self.sound_keys.add(key)
        return key, plain and key == "<<"

    def duplicate(self, key: str, found: Map, at: Place) -> None:
        first = found.document.position(found.places[key][1])
        self.report("duplicate-key", f"the key {shown(key)} is written twice; first at {first}", at)

    def merge(self, into: Map, value: object, at: Place) -> None:
        """YAML 1.1's `<<`: kept because people use it. What it brings must be new: nothing wins silently."""
        sources = value if isinstance(value, Seq) else [value]
        for source in sources:
            if not isinstance(source, Map):
                self.report("bad-merge", "'<<' takes a mapping, or a list of mappings", at)
                continue
            for key, item in source.items():
                if key in into.places:
                    first = into.places[key][0].position(into.places[key][1])
                    self.report(
                        "duplicate-key",
                        f"the key {shown(key)} is written twice: at {first}, and through '<<' here",
                        at,
                        hint="leave it out of one of the two",
                    )
                    continue
                into[key] = item
                into.places[key] = source.places[key]
            self.repeated += len(source)
        if self.repeated > MAX_REPEATED:
            raise self.stop("too-big", f"aliases repeat more than {MAX_REPEATED} values", at)

    def check_tabs(self) -> None:
        """Tabs are fine inside scalars and comments, nowhere else."""
        if not self.watch_tabs:
            return
        text = self.document.text
        spans = iter(sorted(self.scalars))
        span = next(spans, None)
        plain_from = 0
        for match in re.finditer("\t", text):
            index = match.start()
            while span is not None and span[1] <= index:
                plain_from = span[1]
                span = next(spans, None)
            if span is not None and span[0] <= index:
                continue
            line_start = max(text.rfind("\n", 0, index) + 1, plain_from)
            if "#" not in text[line_start:index]:
                place = place_of(text, index)
                self.report("yaml-tab", "a tab where YAML wants spaces", place, hint="indent with spaces")
                return


def resolve(text: str) -> object:
    """What a plain scalar means."""
    first = text[:1]
    if first and first not in "-0123456789tfn~":
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return PlainFloat(text) if _FLOAT.fullmatch(text) else text
