"""Small sets of sentences as bags of words: numbers that an MLP takes.

A word is a run of letters, digits or underscores, lower-cased; "!" and "?" count as words, for they tell questions and
moods. The columns are the most frequent words of the training rows (equally frequent ones in the order of the
alphabet), the entries log(1 + count), and each row is scaled to a Euclidean norm of one: long texts do not shout, and a
rare word cannot make a test row enormous, as standardised columns would. A row without a known word is zero.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from temperance.core.checks import check_count
from temperance.core.errors import DataError
from temperance.core.outcomes import Classes
from temperance.core.seeds import generator
from temperance.data import text
from temperance.data.data import Data, DataInfo
from temperance.data.embedded import split_rows
from temperance.data.files import FileSet, KnownFile

VOCABULARY = 500
"""How many words a bag knows, unless told."""

Rows = tuple[list[str], list[str]]
"""Texts, and the class of each by name."""

_WORD = re.compile(r"\w+|[!?]")


def _lines(content: bytes) -> list[str]:
    """Only ``\\n`` ends a line; one file of TREC has bytes of Latin-1."""
    try:
        decoded = content.decode("utf-8")
    except UnicodeDecodeError:
        decoded = content.decode("latin-1")
    return [line for line in decoded.split("\n") if line.strip()]


def _label_first(content: bytes) -> Rows:
    """``NUM:dist How far is it …``: the coarse class, a colon, the fine one, the question."""
    pairs = [line.split(" ", 1) for line in _lines(content)]
    return [words for _, words in pairs], [label.split(":", 1)[0] for label, _ in pairs]


def _label_column_first(content: bytes) -> Rows:
    """A head line, then ``0⟨tab⟩text``."""
    pairs = [line.split("\t", 1) for line in _lines(content)[1:]]
    return [words for _, words in pairs], ["positive" if label == "1" else "negative" for label, _ in pairs]


def _label_column_last(content: bytes) -> Rows:
    """``text⟨tab⟩Sci/Tech``."""
    pairs = [line.rsplit("\t", 1) for line in _lines(content)]
    return [words for words, _ in pairs], [label.strip() for _, label in pairs]


@dataclass(frozen=True)
class Sentences:
    """One set: its files with their digests, how a file is read, and the classes. ``test`` is ``None`` where no test
    set is given; the files of ``train`` then hold one class each, or all of them."""

    name: str
    rows: int
    train: tuple[tuple[str, str], ...]
    test: tuple[str, str] | None
    classes: tuple[str, ...]
    parse: Callable[[bytes], Rows] | None
    provide: str
    licence: str

    @property
    def files(self) -> FileSet:
        """The files, packed or plain."""
        named = (*self.train, *((self.test,) if self.test else ()))
        known = tuple(KnownFile(name, (f"sha256:{digest}",), (".xz", "")) for name, digest in named)
        return FileSet(self.name, (f"text-small/{self.name}", self.name), known, self.provide)


_ALL = (
    Sentences(
        "trec",
        5952,
        (("train_5500.label", "8bd6e79493f43bbd22c364587366a1dced54e1e31259eaa92721a0f526031116"),),
        ("TREC_10.label", "86ad53c8fc9d397ab2f4be7c967d8efb470b260140557d3e57afad69d1b88b76"),
        ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"),
        _label_first,
        "`train_5500.label` and `TREC_10.label` from https://cogcomp.seas.upenn.edu/Data/QA/QC.",
        "no licence stated; cite Li & Roth 2002",
    ),
    Sentences(
        "sst2",
        69170,
        (("train.tsv", "e981ceb4fe6c9acd1c79851d0d091b9e78103f1f2a399ca83dda27915d41c56c"),),
        ("test.tsv", "fcd46f967b7b8efd8b5398481dadf873886298d092195167af907fd532e81e1c"),
        ("negative", "positive"),
        _label_column_first,
        "`train.tsv` of GLUE's SST-2 and the labelled `test.tsv` of https://nlp.stanford.edu/sentiment.",
        "no licence stated; cite Socher et al. 2013",
    ),
    Sentences(
        "mr",
        10662,
        (
            ("rt-polarity.neg", "c4ac36eaa8adc8ee31c31f69594bfbe68d83ef5b6db53f1f19b28c0be52f3999"),
            ("rt-polarity.pos", "34e5b0da2d491e46b700b00afe735aaae0962bcfe4f7f22b2d8077e714fa370f"),
        ),
        None,
        ("negative", "positive"),
        None,
        "`rt-polarity.neg` and `rt-polarity.pos` (UTF-8) from https://www.cs.cornell.edu/people/pabo/movie-review-data.",
        "no licence stated; cite Pang & Lee 2005",
    ),
    Sentences(
        "agnews",
        17601,
        (("dev.tsv", "7a0811e0006080bf4de17752c5466450ff3db778be71bc5bcf3c4e99b5f0803d"),),
        ("test.tsv", "e4217edd939f618f24a42b0988c56ec3cddf656d8dc279b9afa443dd1ab6a1c1"),
        ("World", "Sports", "Business", "Sci/Tech"),
        _label_column_last,
        "`dev.tsv` (10001 rows, used to train on) and `test.tsv` of AG's news, lines of text, tab, class.",
        "non-commercial; cite Zhang et al. 2015",
    ),
)

SENTENCES: dict[str, Sentences] = {entry.name: entry for entry in _ALL}
"""The sets by name."""


def read_sentences(name: str) -> tuple[Rows, Rows | None]:
    """Texts and classes, checked: to train on, and the given test rows if there are any."""
    entry, files = SENTENCES[name], SENTENCES[name].files
    if entry.parse is None:  # a file for each class, in the order of the classes
        parts = [_lines(files.read(file)) for file, _ in entry.train]
        labels = [label for label, part in zip(entry.classes, parts, strict=True) for _ in part]
        train: Rows = ([line for part in parts for line in part], labels)
    else:
        train = entry.parse(files.read(entry.train[0][0]))
    test = None if entry.test is None or entry.parse is None else entry.parse(files.read(entry.test[0]))
    for rows in (train, test):
        strange = set(rows[1]) - set(entry.classes) if rows else set()
        if strange:
            raise DataError(f"data set {name!r}: classes must be {', '.join(entry.classes)}; got {sorted(strange)}.")
    return train, test


def count_words(texts: Sequence[str]) -> list[Counter[str]]:
    """How often each word occurs in each text.

    >>> count_words(["Why, why not?"])
    [Counter({'why': 2, 'not': 1, '?': 1})]
    """
    return [Counter(_WORD.findall(line.lower())) for line in texts]


def most_frequent(counts: Sequence[Counter[str]], number: int) -> tuple[str, ...]:
    """The ``number`` words that occur most often, in falling order; ties by the alphabet.

    >>> most_frequent(count_words(["b a b", "c a"]), 2)
    ('a', 'b')
    """
    total: Counter[str] = Counter()
    for row in counts:
        total.update(row)
    return tuple(sorted(total, key=lambda word: (-total[word], word))[:number])


def count_matrix(
    counts: Sequence[Counter[str]], words: Sequence[str]
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Rows × ``words``: how often each occurs."""
    places = {word: column for column, word in enumerate(words)}
    made = np.zeros((len(counts), len(words)))
    for row, found in enumerate(counts):
        for word, count in found.items():
            if word in places:
                made[row, places[word]] = count
    return made


def bag(counts: Sequence[Counter[str]], words: Sequence[str]) -> Tensor:
    """Bags of words: log(1 + count), each row scaled to norm one.

    >>> bag(count_words(["so so good", "bad"]), ["so", "good"])
    tensor([[0.8457, 0.5336],
            [0.0000, 0.0000]])
    """
    logs = np.log1p(count_matrix(counts, words))
    norms = np.linalg.norm(logs, axis=1, keepdims=True)
    return torch.from_numpy((logs / np.where(norms > 0, norms, 1.0)).astype(np.float32))


def _bags(
    name: str, classes: tuple[str, ...], train: Rows, test: Rows, vocabulary: int, note: str
) -> tuple[Data, Data]:
    counts = [count_words(part[0]) for part in (train, test)]
    words = most_frequent(counts[0], check_count(vocabulary, "vocabulary"))
    info = DataInfo(
        name=name,
        outcome=Classes(),
        num_classes=len(classes),
        classes=classes,
        features=words,
        note=f"log(1 + count) of the {len(words)} most frequent words of the training rows, rows of norm 1; {note}",
    )
    made = [
        Data(bag(found, words), torch.tensor([classes.index(label) for label in part[1]]), info=info)
        for found, part in zip(counts, (train, test), strict=True)
    ]
    return made[0], made[1]


def load_sentences(name: str, split: int, seed: int, vocabulary: int = VOCABULARY) -> tuple[Data, Data]:
    """Bags of words of one of :data:`SENTENCES`; where no test set is given, a tenth of the rows by ``split``."""
    entry = SENTENCES[name]
    train, test = read_sentences(name)
    note = "the given test set"
    if test is None:
        labels = torch.tensor([entry.classes.index(label) for label in train[1]])
        parts = split_rows(labels, len(labels), generator(seed, name, split), held_out=0.1)
        kept, others = [([train[0][k] for k in part], [train[1][k] for k in part]) for part in parts]
        train, test, note = kept, others, f"split {split}"
    return _bags(name, entry.classes, train, test, vocabulary, note)


def load_imdb_bag(split: int, seed: int, vocabulary: int = VOCABULARY) -> tuple[Data, Data]:
    """The reviews of ``imdb`` as bags of words, 25000 to train on and 25000 to test, in one mixed order."""
    parts: list[Rows] = []
    for number, reviews in enumerate(text.read_imdb()[:2]):
        keys = sorted(reviews)
        order = torch.randperm(len(keys), generator=generator(0, "imdb-bag", number)).tolist()
        mixed = [keys[k] for k in order]
        labels = ["positive" if key.startswith("pos/") else "negative" for key in mixed]
        parts.append(([reviews[key].decode("utf-8", "replace") for key in mixed], labels))
    return _bags("imdb-bag", ("negative", "positive"), parts[0], parts[1], vocabulary, "the given test set")
