"""Temperance beside other libraries. Nothing here is imported by ``import temperance``."""
