"""The official command, `lium` 0.32.0."""

from __future__ import annotations

import json

from tests.contract.conftest import Person, Server


def test_nodes_quotes_and_templates(person: Person) -> None:
    nodes = person.json("ls", "--gpu", "RTX4090")
    assert nodes
    assert {row["gpu_type"] for row in nodes} == {"RTX4090"}
    prices = [row["price_per_gpu_hour"] for row in nodes]
    assert prices == sorted(prices)
    assert nodes[0]["huid"] in person.run("ls")
    quote = person.json("quote", nodes[0]["id"], "--hours", "2", "--gpus", "1")
    assert quote["total_usd"] == round(2 * nodes[0]["price_per_gpu_hour"], 5)
    listed = person.json("templates", "pytorch")
    assert all("pytorch" in json.dumps(row).lower() for row in listed)
    assert listed


def test_a_pod_from_an_image_to_its_removal(person: Person, server: Server) -> None:
    made = person.json("up", "--gpu", "RTX4090", "--name", "one", "--image", "limsim/any", "-y", flag=("--json",))
    pod = made["pod"]
    assert (pod["status"], pod["gpu_count"], pod["ports"]["22"] > 0) == ("RUNNING", 1, True)
    assert [row["id"] for row in person.json("ps")] == [pod["id"]]
    described = person.json("describe", "one", flag=("--json",))
    assert described["pod"]["id"] == pod["id"]
    assert described["gpu"]["model"] == "NVIDIA GeForce RTX 4090"
    assert "GPU 0: NVIDIA GeForce RTX 4090" in person.run("exec", "one", "nvidia-smi -L")
    person.run("exec", "one", "exit 3", status=3)
    (person.home / "there.txt").write_text("what goes up\n")
    person.run("scp", "one", "there.txt", "/root/there.txt")
    assert "what goes up" in person.run("exec", "one", "cat /root/there.txt")
    person.run("scp", "one", "/root/there.txt", "back.txt", "-d")
    assert (person.home / "back.txt").read_text() == "what goes up\n"
    spend = person.json("spend")
    assert spend["burn_per_hour"] == pod["price_per_hour"]
    assert [row["id"] for row in server.open_pods(person.name)] == [pod["id"]]
    removed = person.json("rm", "one", "-y", "--rating", "4", "--feedback", "fine")
    assert pod["id"] in json.dumps(removed)
    assert server.open_pods(person.name) == []
    server.control("POST", "/advance", {"seconds": 90})
    assert person.json("ps") == []
    assert "user_initiated" in person.run("describe", pod["id"])


def test_a_pod_from_a_template_with_a_time_to_live_and_a_volume(person: Person) -> None:
    person.run("volumes", "new", "store", "-d", "what outlives it")
    assert "store" in person.run("volumes", "list")
    template = next(row["id"] for row in person.json("templates") if row["category"] == "UBUNTU")
    volume = person.python(
        "from lium.sdk import Lium; import json; print(json.dumps([v.huid for v in Lium().volumes()][0]))"
    )
    wanted = ("up", "--gpu", "A100", "--name", "two", "-t", template, "-v", f"id:{volume}", "--ttl", "6h", "-y")
    pod = person.json(*wanted, flag=("--json",))["pod"]
    assert pod["removal_scheduled_at"] is not None
    assert person.run("exec", "two", "mountpoint -q /mnt && echo mounted").count("mounted") == 1
    assert "two" in person.run("ps")
    assert "RUNNING" in person.run("schedules", "list")
    person.run("schedules", "rm", "1")
    assert person.json("ps")[0]["removal_scheduled_at"] is None
    person.run("reboot", "two")
    person.run("rm", "two", "-y")


def test_who_am_i_and_what_happened(person: Person, server: Server) -> None:
    assert server.base_url in person.run("whoami")
    assert "100" in person.run("balance")
    person.run("audit")
    assert person.name in person.run("workspaces", "list")
    person.run("ssh-keys", "list")
    person.run("billing", "history")


def test_a_bounded_job_ends_by_itself_and_brings_its_output_back(person: Person, server: Server) -> None:
    (person.home / "in.txt").write_text("seven\n")
    done = person.json(
        *("job", "run", "tr a-z A-Z </root/in.txt >/root/out.txt; echo said", "--gpu", "RTX4090", "--budget", "1"),
        *("--deadline", "10m", "--input", "in.txt:/root/in.txt", "--output", "/root/out.txt:out.txt"),
    )
    assert done["status"] == "succeeded", done
    assert (person.home / "out.txt").read_text() == "SEVEN\n"
    assert server.open_pods(person.name) == []
