"""Terraform for the Lium GPU market."""

__version__ = "0.1.0"
