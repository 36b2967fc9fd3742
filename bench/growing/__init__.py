"""What the growth benchmark needs besides our command: a stack of any size, and servers and peers to plan it with."""
