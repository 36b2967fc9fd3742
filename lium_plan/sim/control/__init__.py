"""The control routes under `/_sim`, and the page for people. Loopback only, and no part of the Lium API."""
