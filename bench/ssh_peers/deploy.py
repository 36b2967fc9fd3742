"""pyinfra's version."""

from pyinfra import host
from pyinfra.operations import files, server

PORT = host.data.get("ssh_port")

files.put(name="send", src="script.sh", dest=f"work/script-{PORT}.sh", mode="755", create_remote_dir=True)
server.shell(name="run", commands=[f"sh work/script-{PORT}.sh {PORT}"])
server.shell(name="verify", commands=[f"grep -qx 'done on {PORT}' work/result-{PORT}"])
