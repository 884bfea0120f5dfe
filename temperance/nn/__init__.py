"""The networks of the papers: MLP, CNN, ResNet, PreResNet, CNN-LSTM, and the norms that keep examples independent."""

from __future__ import annotations

from temperance.nn.cnn import CNN
from temperance.nn.mlp import MLP
from temperance.nn.norm import FilterResponseNorm, NormFactory, group_norm
from temperance.nn.recurrent import CNNLSTM, SingleBiasLSTM
from temperance.nn.resnet import PreResNet, ResNet, ResNet20, Shortcut, load_cifar_resnet

__all__ = [
    "CNN",
    "CNNLSTM",
    "MLP",
    "FilterResponseNorm",
    "NormFactory",
    "PreResNet",
    "ResNet",
    "ResNet20",
    "Shortcut",
    "SingleBiasLSTM",
    "group_norm",
    "load_cifar_resnet",
]
