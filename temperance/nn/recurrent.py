"""The CNN-LSTM of the cold-posterior experiments on IMDB reviews."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from temperance.core.checks import check_counts
from temperance.core.errors import ArgumentError


class SingleBiasLSTM(nn.Module):
    """One LSTM layer with one bias vector, giving the last hidden state.

    With σ the logistic function and (i, f, g, o) the four blocks of a = W xₜ + U hₜ₋₁ + b::

        cₜ = σ(f) cₜ₋₁ + σ(i) tanh(g),     hₜ = σ(o) tanh(cₜ)

    ``nn.LSTM`` has two biases that only ever appear as their sum: a direction in weight space that the data cannot
    see, but that a prior, a Laplace approximation or a sampler would. It also cannot be run under ``torch.func.vmap``
    or forward-mode differentiation on CPUs. This loop over time can, and is slower than that layer.

    Args:
        in_features: size of xₜ.
        hidden: size of hₜ.

    >>> SingleBiasLSTM(64, 70)(torch.zeros(3, 24, 64)).shape
    torch.Size([3, 70])
    """

    def __init__(self, in_features: int, hidden: int) -> None:
        super().__init__()
        check_counts(in_features=in_features, hidden=hidden)
        self.in_features = in_features
        self.hidden = hidden
        self.input_weight = nn.Parameter(torch.empty(4 * hidden, in_features))
        self.recurrent_weight = nn.Parameter(torch.empty(4 * hidden, hidden))
        self.bias = nn.Parameter(torch.empty(4 * hidden))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot for W, orthogonal for U, b = 0 but 1 for the forget gate (Jozefowicz 2015)."""
        nn.init.xavier_uniform_(self.input_weight)
        nn.init.orthogonal_(self.recurrent_weight)
        nn.init.zeros_(self.bias)
        with torch.no_grad():
            self.bias[self.hidden : 2 * self.hidden] = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Last hidden state, N × ``hidden``, of the sequences N × time × ``in_features``."""
        if x.dim() != 3 or x.shape[1] < 1 or x.shape[2] != self.in_features:
            raise ArgumentError(f"`x` must be N x time x {self.in_features}; got shape {tuple(x.shape)}.")
        from_input = functional.linear(x, self.input_weight, self.bias)
        h = c = from_input.new_zeros(x.shape[0], self.hidden)
        for a in from_input.unbind(1):
            i, f, g, o = (a + h @ self.recurrent_weight.T).chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h

    def extra_repr(self) -> str:
        """Show the arguments of the constructor."""
        return f"{self.in_features}, {self.hidden}"


class _SmallEmbedding(nn.Embedding):
    """An embedding that starts uniform on [-0.05, 0.05], as in Keras, where the published networks were made."""

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, -0.05, 0.05)


class CNNLSTM(nn.Module):
    """Embedding → convolution without padding → ReLU → max-pooling → LSTM → linear (Wenzel et al. 2020).

    The defaults are those of the IMDB experiments: 2 638 966 parameters; reviews of 100 words become 24 time steps.

    Args:
        vocabulary: number of words; the inputs are integers from 0 to ``vocabulary - 1``.
        embedding: size of a word vector.
        channels: channels of the convolution.
        kernel: words that the convolution sees at once.
        pool: width and stride of the pooling.
        lstm: size of the hidden state.
        out_features: number of outputs.

    >>> network = CNNLSTM(vocabulary=1000)
    >>> network(torch.zeros(3, 100, dtype=torch.long)).shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        vocabulary: int = 20000,
        embedding: int = 128,
        channels: int = 64,
        kernel: int = 5,
        pool: int = 4,
        lstm: int = 70,
        out_features: int = 2,
    ) -> None:
        super().__init__()
        check_counts(
            vocabulary=vocabulary,
            embedding=embedding,
            channels=channels,
            kernel=kernel,
            pool=pool,
            lstm=lstm,
            out_features=out_features,
        )
        self.shortest = kernel + pool - 1
        self.embedding = _SmallEmbedding(vocabulary, embedding)
        self.convolution = nn.Conv1d(embedding, channels, kernel)
        self.pool = nn.MaxPool1d(pool)
        self.lstm = SingleBiasLSTM(channels, lstm)
        self.head = nn.Linear(lstm, out_features)

    def forward(self, tokens: Tensor) -> Tensor:
        """Outputs, N × ``out_features``, of the word numbers N × length."""
        if tokens.dim() != 2 or tokens.shape[1] < self.shortest or tokens.is_floating_point():
            raise ArgumentError(
                f"`tokens` must be integers of shape N x length, with length at least {self.shortest} "
                f"(kernel + pool - 1); got {tokens.dtype} of shape {tuple(tokens.shape)}."
            )
        words = self.embedding(tokens).transpose(1, 2)
        features = self.pool(torch.relu(self.convolution(words)))
        return self.head(self.lstm(features.transpose(1, 2)))
