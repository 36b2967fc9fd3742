"""What is written for a registry login: a template's `registry_auth`."""

from __future__ import annotations

from pydantic import Field

from lium_plan.kinds.fields import Block, TextField


class RegistryAuthBlock(Block):
    """A login for private images; only Docker Hub is known to work (contract §2.11)."""

    username: TextField = Field(description="Usually ${{ env.REG_USER }}")
    password: TextField = Field(description="Usually ${{ env.REG_PASS }}: sensitive by itself")
