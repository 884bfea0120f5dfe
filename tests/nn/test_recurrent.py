from __future__ import annotations

import pytest
import torch
from torch import nn

from temperance.core.errors import ArgumentError
from temperance.nn import CNNLSTM, SingleBiasLSTM


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def test_cnn_lstm_has_the_published_number_of_parameters() -> None:
    assert count(CNNLSTM()) == 2_638_966


def test_equals_torchs_lstm_whose_second_bias_is_zero() -> None:
    ours = SingleBiasLSTM(4, 6).double()
    theirs = nn.LSTM(4, 6, batch_first=True).double()
    with torch.no_grad():
        ours.bias.normal_()
        theirs.weight_ih_l0.copy_(ours.input_weight)
        theirs.weight_hh_l0.copy_(ours.recurrent_weight)
        theirs.bias_ih_l0.copy_(ours.bias)
        theirs.bias_hh_l0.zero_()
    x = torch.randn(3, 9, 4, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x)[0][:, -1], rtol=1e-12, atol=1e-12)


def test_reviews_of_100_words_become_24_steps() -> None:
    network = CNNLSTM(vocabulary=50)
    steps: list[int] = []
    network.lstm.register_forward_pre_hook(lambda _, inputs: steps.append(inputs[0].shape[1]))
    network(torch.zeros(2, 100, dtype=torch.long))
    assert steps == [24]


def test_learns_which_word_is_there() -> None:
    torch.manual_seed(0)
    network = CNNLSTM(vocabulary=30, embedding=16, channels=8, kernel=3, pool=2, lstm=8)
    tokens = torch.randint(2, 30, (64, 20))
    labels = torch.arange(64) % 2
    tokens[torch.arange(64), torch.randint(0, 20, (64,))] = labels
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(tokens), labels).backward()
        optimizer.step()
    assert (network(tokens).argmax(1) == labels).double().mean() > 0.95


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SingleBiasLSTM(0, 3), "`in_features` must be a positive integer; got 0"),
        (lambda: SingleBiasLSTM(2, 3)(torch.zeros(4, 5, 3)), r"`x` must be N x time x 2; got shape \(4, 5, 3\)"),
        (lambda: SingleBiasLSTM(2, 3)(torch.zeros(4, 0, 2)), r"got shape \(4, 0, 2\)"),
        (lambda: CNNLSTM(pool=0), "`pool` must be a positive integer; got 0"),
        (lambda: CNNLSTM(10)(torch.zeros(2, 7, dtype=torch.long)), "length at least 8"),
        (lambda: CNNLSTM(10)(torch.zeros(2, 100)), "`tokens` must be integers .* got torch.float32"),
    ],
)
def test_bad_arguments_are_named(make: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()  # type: ignore[operator]
