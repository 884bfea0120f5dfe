"""IMDB movie reviews as the token sequences that Keras made of them.

Papers (Izmailov et al. 2021 among them) use ``keras.datasets.imdb``, whose file is a pickle. We make the same numbers
from the raw reviews: same order (a shuffle by ``RandomState(113)``, training set first, then the test set), same words.
Keras tokenised *bytes*, so only A to Z were lowered and only the plain space separates: "É" stays "É" and a
non-breaking space is part of a word. With that rule all 88584 words of the index occur in the training set and no
training word is unknown; with Python's own ``lower`` and ``split`` neither holds.
"""

from __future__ import annotations

import io
import json
import string
import tarfile

import numpy as np
import torch
from numpy.typing import NDArray

from temperance.core.checks import shown
from temperance.core.errors import ArgumentError, DataError
from temperance.core.outcomes import Classes
from temperance.data.data import Data, DataInfo
from temperance.data.files import FileSet, KnownFile, missing_error

PADDING, START, UNKNOWN, FIRST_WORD = 0, 1, 2, 3
"""What tokens mean: 0 fills up, 1 starts a review, 2 is a word outside the vocabulary, word k of the index is k + 3."""

_INDEX = KnownFile(
    "imdb_word_index.json",
    (
        "sha256:9ce86165dbfd92a09e3558794c377872eba6af8baec07fdfa3b61ecf2518c6e4",
        "md5:bfafd718b763782e994055a2d397834f",  # as Keras publishes it: the same words, laid out differently
    ),
    (".xz", ""),
)
_PROVIDE = (
    "aclImdb_v1.tar.gz from https://ai.stanford.edu/~amaas/data/sentiment/ and imdb_word_index.json from "
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/imdb_word_index.json."
)
_TABLES = FileSet(
    "imdb",
    ("imdb",),
    (
        KnownFile(
            "train.tsv", ("sha256:daa1b3e5cfb3611a67a7b497be12c2e71440b1cfe91901d513ebf34ed7ea5cda",), (".xz", "")
        ),
        KnownFile(
            "test.tsv", ("sha256:c1a050f35ced6017e2c9418dd80a12e4b54ab518db2cc6e04d064add186c569f",), (".xz", "")
        ),
        _INDEX,
    ),
    _PROVIDE,
)
_ARCHIVE = FileSet(
    "imdb", ("imdb", "."), (KnownFile("aclImdb_v1.tar.gz", ("md5:7c2ac02c03563afcf9b574c7e56c153a",)), _INDEX), _PROVIDE
)
IMDB_FILES = (_TABLES, _ARCHIVE)
"""The two forms in which the reviews are accepted."""

_SEPARATORS = b'!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n'
_LOWER = string.ascii_uppercase.encode() + _SEPARATORS
_NORMALISE = bytes.maketrans(_LOWER, string.ascii_lowercase.encode() + b" " * len(_SEPARATORS))

Reviews = dict[str, bytes]


def read_imdb(*, check: bool = True) -> tuple[Reviews, Reviews, dict[bytes, int]]:
    """Training reviews, test reviews (text by key such as ``pos/576_10.txt``) and the number of each word."""
    files = next((files for files in IMDB_FILES if files.where() is not None), None)
    if files is None:
        raise missing_error(IMDB_FILES)
    if files is _TABLES:
        train, test = (_parse_table(files.read(f"{part}.tsv", check=check)) for part in ("train", "test"))
    else:
        train, test = _parse_archive(files.read("aclImdb_v1.tar.gz", check=check))
    index = json.loads(files.read(_INDEX.name, check=check))
    return train, test, {word.encode(): int(number) for word, number in index.items()}


def _parse_table(content: bytes) -> Reviews:
    """Lines of key, tab, text. Reviews hold other characters that count as line ends elsewhere: only ``\\n`` is one."""
    rows = (line.split(b"\t", 1) for line in content.split(b"\n") if line)
    return {key.decode(): text for key, text in rows}


def _parse_archive(content: bytes) -> tuple[Reviews, Reviews]:
    """The labelled reviews of the original archive, read in memory: nothing is extracted to disk."""
    parts: dict[str, Reviews] = {"train": {}, "test": {}}
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            for member in archive:
                path = member.name.removeprefix("./").split("/")
                if member.isfile() and len(path) == 4 and path[1] in parts and path[2] in ("pos", "neg"):
                    stream = archive.extractfile(member)
                    assert stream is not None
                    parts[path[1]][f"{path[2]}/{path[3]}"] = stream.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"aclImdb_v1.tar.gz: must be a readable tar archive; got {error}.") from error
    return parts["train"], parts["test"]


def tokenise(text: bytes, words: dict[bytes, int]) -> NDArray[np.int64]:
    """The tokens of one review, the start token first. Words that the index does not know are left out, as Keras did.

    >>> tokenise(b"A fine, FINE film!", {b"fine": 7, b"film": 2}).tolist()
    [1, 10, 10, 5]
    """
    known = (words[word] + FIRST_WORD for word in text.translate(_NORMALISE).split(b" ") if word in words)
    return np.fromiter((START, *known), dtype=np.int64)


def _arrange(
    reviews: Reviews, words: dict[bytes, int], random: np.random.RandomState, vocabulary: int, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (N × length) and labels of one part, in the order of Keras."""
    positive = sorted(key for key in reviews if key.startswith("pos/"))
    keys = positive + sorted(key for key in reviews if key.startswith("neg/"))
    order = np.arange(len(keys))
    random.shuffle(order)
    x = np.full((len(keys), length), PADDING, dtype=np.int64)
    for row, number in enumerate(order):
        tokens = tokenise(reviews[keys[number]], words)[-length:]
        x[row, length - len(tokens) :] = np.where(tokens < vocabulary, tokens, UNKNOWN)
    return torch.from_numpy(x), torch.from_numpy((order < len(positive)).astype(np.int64))


def load_imdb(split: int, seed: int, vocabulary: int = 20000, length: int = 100) -> tuple[Data, Data]:
    """25000 reviews to train on and 25000 to test, 1 for positive: the last ``length`` tokens, zeros on the left.

    Tokens of ``vocabulary`` and above (rarer words) become 2.
    """
    for argument, value, least in (("vocabulary", vocabulary, FIRST_WORD + 1), ("length", length, 1)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ArgumentError(f"`{argument}` must be an integer of at least {least}; got {shown(value)}.")
    train, test, words = read_imdb()
    random = np.random.RandomState(113)  # the order of Keras is made by this generator
    info = DataInfo(
        name="imdb",
        outcome=Classes(),
        num_classes=2,
        classes=("negative", "positive"),
        note=f"Keras tokens below {vocabulary}, the last {length} of each review",
    )
    parts = [Data(*_arrange(part, words, random, vocabulary, length), info=info) for part in (train, test)]
    return parts[0], parts[1]
