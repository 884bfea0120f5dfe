"""Rows, batches and data sets."""

from temperance.data.bandit import Mushrooms, load_mushrooms
from temperance.data.catalog import DataSetEntry, Verification, data_home, list_data_sets, load, load_all, verify
from temperance.data.corruptions import CORRUPTIONS, corrupt
from temperance.data.data import Batch, Data, DataInfo
from temperance.data.reference import HMCReference, load_hmc_reference

__all__ = [
    "CORRUPTIONS",
    "Batch",
    "Data",
    "DataInfo",
    "DataSetEntry",
    "HMCReference",
    "Mushrooms",
    "Verification",
    "corrupt",
    "data_home",
    "list_data_sets",
    "load",
    "load_all",
    "load_hmc_reference",
    "load_mushrooms",
    "verify",
]
