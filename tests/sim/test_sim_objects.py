"""Templates, volumes, credentials, SSH keys (contract §2.9–§2.12), and the limits on making templates (§1.6)."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.sim.lab import Lab, in_lab, refusal

UNKNOWN = "00000000-0000-4000-8000-000000000000"
TEMPLATE = {"name": "mine", "docker_image": "limsim/plain"}


def test_templates_that_are_stored_as_sent() -> None:
    async def body(lab: Lab) -> None:
        sent = {
            "name": "mine",
            "docker_image": "repo/name",
            "docker_image_tag": "1.2",
            "internal_ports": [8000, 22],
            "startup_commands": "sleep infinity",
            "environment": {"B": "2", "A": "1"},
            "volumes": ["/root"],
            "category": "PYTORCH",
        }
        row = await lab.post("/templates", sent)
        assert {name: row[name] for name in sent} == sent
        assert row["user_id"] == (await lab.get("/users/me"))["id"]
        assert row["status"] == "CREATED"
        assert await lab.get(f"/templates/{row['id']}") == row
        assert row in await lab.get("/templates")

    in_lab(body)


@pytest.mark.parametrize(
    ("image", "stored"),
    [
        ("repo/name:tag", ("repo/name", "tag", "")),
        ("repo/name", ("repo/name", "latest", "")),
        ("repo/name@sha256:ab", ("repo/name", "", "sha256:ab")),
        ("host:5000/repo/name", ("host:5000/repo/name", "latest", "")),
        ("host:5000/repo/name:1", ("host:5000/repo/name", "1", "")),
    ],
)
def test_a_whole_reference_is_split(image: str, stored: tuple[str, str, str]) -> None:
    async def body(lab: Lab) -> None:
        row = await lab.post("/templates", {"name": "x", "docker_image": image, "docker_image_tag": ""})
        assert (row["docker_image"], row["docker_image_tag"], row["docker_image_digest"]) == stored

    in_lab(body)


@pytest.mark.parametrize(
    "command",
    ["a && b", "a; b", "a | b", "echo $HOME", "echo `id`", "(a)", "a > b", "exec sleep infinity", "/bin/ls", "a\nb"],
)
def test_shell_syntax_in_startup_commands_is_refused(command: str) -> None:
    async def body(lab: Lab) -> None:
        answer = await lab.call("POST", "/templates", {**TEMPLATE, "startup_commands": command})
        assert refusal(answer) == (422, "validation_error")
        assert "Malicious startup command detected" in answer.text

    in_lab(body)


@pytest.mark.parametrize("command", ["sleep infinity", "-c 'exec sleep infinity'", 'sh -c "a && b | c"', ""])
def test_quoted_arguments_pass(command: str) -> None:
    async def body(lab: Lab) -> None:
        row = await lab.post("/templates", {**TEMPLATE, "startup_commands": command})
        assert row["startup_commands"] == command

    in_lab(body)


@pytest.mark.parametrize(
    "fields",
    [{"category": "GAMES"}, {"internal_ports": [0]}, {"internal_ports": ["ssh"]}, {"docker_image": ""}, {"name": None}],
)
def test_bad_template_fields(fields: dict[str, object]) -> None:
    async def body(lab: Lab) -> None:
        assert refusal(await lab.call("POST", "/templates", {**TEMPLATE, **fields})) == (422, "validation_error")

    in_lab(body)


def test_template_windows() -> None:
    """1 in 5 s, 5 in 60 s, 20 in an hour; a refused call is not counted."""

    async def body(lab: Lab) -> None:
        async def attempt() -> int:
            return (await lab.call("POST", "/templates", TEMPLATE)).status_code

        answer = await lab.call("POST", "/templates", TEMPLATE)
        assert answer.status_code == 200
        limited = await lab.call("POST", "/templates", TEMPLATE)
        assert refusal(limited) == (429, "rate_limited")
        assert limited.headers["Retry-After"] == "5"
        assert (await lab.call("POST", "/templates", TEMPLATE, key="sk_sim_other")).status_code == 200
        for _ in range(4):
            await asyncio.sleep(5.1)
            assert await attempt() == 200
        await asyncio.sleep(5.1)
        assert await attempt() == 429
        await asyncio.sleep(40)
        made = 5
        while await attempt() == 200:
            made += 1
            await asyncio.sleep(15)
        assert made == 20
        await asyncio.sleep(3600)
        assert await attempt() == 200

    in_lab(body)


def test_speed_shortens_the_windows() -> None:
    async def body(lab: Lab) -> None:
        await lab.post("/templates", TEMPLATE)
        await asyncio.sleep(0.55)
        assert (await lab.call("POST", "/templates", TEMPLATE)).status_code == 200

    in_lab(body, speed=10)


@pytest.mark.parametrize(
    ("shared", "after_template", "after_rent"),
    [("off", 200, 200), ("count", 200, 429), ("refuse", 429, 429)],
)
def test_the_shared_limiter(shared: str, after_template: int, after_rent: int) -> None:
    async def body(lab: Lab) -> None:
        wanted = await lab.rent_body()
        path = f"/executors/{lab.node()}/rent"
        await lab.post("/templates", TEMPLATE)
        await asyncio.sleep(2)
        assert (await lab.call("POST", path, wanted)).status_code == after_template
        await asyncio.sleep(60)
        assert (await lab.call("POST", path, wanted)).status_code == 200
        await asyncio.sleep(2)
        assert (await lab.call("POST", "/templates", TEMPLATE)).status_code == after_rent

    in_lab(body, shared_limiter=shared)


def test_a_429_does_not_burn_a_key() -> None:
    async def body(lab: Lab) -> None:
        path, wanted = f"/executors/{lab.node()}/rent", await lab.rent_body()
        await lab.post(path, wanted)
        assert refusal(await lab.call("POST", path, wanted, Idempotency_Key="k")) == (429, "rate_limited")
        await asyncio.sleep(60)
        answer = await lab.call("POST", path, wanted, Idempotency_Key="k")
        assert answer.status_code == 200
        assert "Idempotent-Replayed" not in answer.headers

    in_lab(body, rents_per_minute=1)


def test_the_list_of_pods_has_a_limit() -> None:
    async def body(lab: Lab) -> None:
        for _ in range(60):
            await lab.get("/pods")
        assert refusal(await lab.call("GET", "/pods")) == (429, "rate_limited")
        for _ in range(60):
            await lab.get("/public/v1/nodes", key=None)
        assert (await lab.call("GET", "/public/v1/nodes", key=None)).status_code == 429
        await asyncio.sleep(60)
        await lab.get("/pods")

    in_lab(body)


def test_listing_exactly_once_a_second_is_fine_for_ever() -> None:
    async def body(lab: Lab) -> None:
        for number in range(200):
            await lab.get("/pods")
            await asyncio.sleep(1 + (0.02 if number % 2 else -0.02))

    in_lab(body)


def test_a_template_in_use_stays_until_its_pod_is_wholly_gone() -> None:
    async def body(lab: Lab) -> None:
        template = await lab.template()
        pod_id = await lab.running(template_id=template)
        for _ in range(2):
            answer = await lab.call("DELETE", f"/templates/{template}")
            assert answer.status_code == 400
            assert answer.json()["message"] == "Template is used by a pod"
            await lab.call("DELETE", f"/pods/{pod_id}")
        await asyncio.sleep(80)
        assert (await lab.call("DELETE", f"/templates/{template}")).status_code == 200
        assert refusal(await lab.call("DELETE", f"/templates/{template}")) == (404, "not_found")

    in_lab(body)


def test_whose_templates_one_sees_and_may_change() -> None:
    async def body(lab: Lab) -> None:
        private = await lab.template(name="private")
        public = await lab.template(name="public", is_private=False)
        official = next(row for row in await lab.get("/templates") if row["user_id"] is None)["id"]
        seen = {row["id"] for row in await lab.get("/templates", key="sk_sim_other")}
        assert public in seen
        assert private not in seen
        assert official in {row["id"] for row in await lab.get("/templates", key=None)}
        other = {"key": "sk_sim_other"}
        assert (await lab.call("GET", f"/templates/{private}", **other)).status_code == 404
        assert refusal(await lab.call("DELETE", f"/templates/{public}", **other)) == (403, "forbidden")
        assert refusal(await lab.call("DELETE", f"/templates/{official}")) == (403, "forbidden")
        wanted = {**await lab.rent_body(), "template_id": private}
        rent = await lab.call("POST", f"/executors/{lab.node()}/rent", wanted, **other)
        assert refusal(rent) == (404, "template_not_found")
        assert refusal(await lab.call("GET", f"/templates/{UNKNOWN}")) == (404, "not_found")

    in_lab(body)


def test_updating_a_template_takes_the_whole_object_without_nulls() -> None:
    async def body(lab: Lab) -> None:
        template = await lab.template()
        null = await lab.call("PUT", f"/templates/{template}", {**TEMPLATE, "entrypoint": None})
        assert refusal(null) == (422, "validation_error")
        done = await lab.call("PUT", f"/templates/{template}", {**TEMPLATE, "name": "new"})
        assert (done.json()["name"], done.json()["status"]) == ("new", "UPDATED")

    in_lab(body)


def test_one_time_templates_go_with_their_pod() -> None:
    async def body(lab: Lab) -> None:
        template = await lab.template(one_time_template=True)
        pod_id = await lab.running(template_id=template)
        await lab.call("DELETE", f"/pods/{pod_id}")
        await asyncio.sleep(80)
        assert (await lab.call("GET", f"/templates/{template}")).status_code == 404

    in_lab(body)


def test_the_server_may_store_templates_in_its_own_spelling() -> None:
    async def body(lab: Lab) -> None:
        sent = {
            **TEMPLATE,
            "docker_image": "docker.io/library/ubuntu",
            "internal_ports": [9000, 8000],
            "environment": {"Z": "1", "A": "2", "PATH": "/x"},
            "startup_commands": "sleep   infinity",
        }
        row = await lab.post("/templates", sent)
        assert row["internal_ports"] == [22, 8000, 9000]
        assert row["docker_image"] == "ubuntu"
        assert list(row["environment"]) == ["A", "Z"]
        assert row["startup_commands"] == "sleep infinity"

    in_lab(body, normalise_templates=True)


def test_volumes() -> None:
    async def body(lab: Lab) -> None:
        for name in ("", "x" * 101, "a;b", "tab\t"):
            assert refusal(await lab.call("POST", "/volumes", {"name": name})) == (422, "validation_error")
        row = await lab.post("/volumes", {"name": "My data (v1)!", "description": "d"})
        assert (row["current_size_bytes"], row["description"]) == (0, "d")
        assert await lab.get("/volumes") == [row]
        renamed = await lab.call("PUT", f"/volumes/{row['id']}", {"name": "b"})
        assert (renamed.json()["name"], renamed.json()["description"]) == ("b", "d")
        assert await lab.get("/volumes", key="sk_sim_other") == []
        assert (await lab.call("GET", f"/volumes/{row['id']}", key="sk_sim_other")).status_code == 404
        deleted = await lab.call("DELETE", f"/volumes/{row['id']}")
        assert deleted.json()
        assert refusal(await lab.call("DELETE", f"/volumes/{row['id']}")) == (404, "not_found")

    in_lab(body)


def test_one_pod_per_volume_also_while_that_is_being_deleted() -> None:
    async def body(lab: Lab) -> None:
        volume = (await lab.post("/volumes", {"name": "v"}))["id"]
        pod_id = await lab.running(volume_id=volume)
        wanted = await lab.rent_body(volume_id=volume)
        for _ in range(2):
            answer = await lab.call("POST", f"/executors/{lab.node()}/rent", wanted)
            assert refusal(answer) == (409, None)
            assert "already attached" in answer.json()["message"]
            assert refusal(await lab.call("DELETE", f"/volumes/{volume}")) == (409, None)
            await lab.call("DELETE", f"/pods/{pod_id}")
        await asyncio.sleep(80)
        assert (await lab.call("POST", f"/executors/{lab.node()}/rent", wanted)).status_code == 200

    in_lab(body)


def test_credentials() -> None:
    async def body(lab: Lab) -> None:
        login = {"docker_username": "u", "docker_password": "p"}
        row = await lab.post("/docker-credentials/", login)
        twin = await lab.post("/docker-credentials/", login)
        assert row["id"] != twin["id"]
        assert row["password"] == "p"
        assert len(await lab.get("/docker-credentials/")) == 2
        template = await lab.template(docker_credential_id=row["id"])
        used = await lab.call("DELETE", f"/docker-credentials/{row['id']}")
        assert used.status_code == 400
        changed = await lab.call("PUT", f"/docker-credentials/{row['id']}", {**login, "docker_password": "q"})
        assert changed.json()["password"] == "q"
        await lab.call("DELETE", f"/templates/{template}")
        done = await lab.call("DELETE", f"/docker-credentials/{row['id']}")
        assert (done.status_code, done.content) == (204, b"")
        assert refusal(await lab.call("DELETE", f"/docker-credentials/{row['id']}")) == (404, "not_found")
        default = await lab.call("POST", "/docker-credentials/")
        assert default.json() == (await lab.call("POST", "/docker-credentials/")).json()
        foreign = await lab.call("POST", "/templates", {**TEMPLATE, "docker_credential_id": UNKNOWN})
        assert refusal(foreign) == (404, "not_found")

    in_lab(body)


def test_ssh_keys_pile_up() -> None:
    async def body(lab: Lab) -> None:
        for _ in range(2):
            await lab.post("/ssh-keys", {"name": "k", "public_key": "ssh-ed25519 AAAA"})
        rows = await lab.get("/ssh-keys")
        assert len({row["id"] for row in rows}) == 2
        await lab.call("PUT", f"/ssh-keys/{rows[0]['id']}", {"name": "n"})
        await lab.call("DELETE", f"/ssh-keys/{rows[1]['id']}")
        assert [row["name"] for row in await lab.get("/ssh-keys")] == ["n"]

    in_lab(body)


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/templates", TEMPLATE),
        ("/volumes", {"name": "v"}),
        ("/docker-credentials/", {"docker_username": "u", "docker_password": "p"}),
        ("/ssh-keys", {"name": "k", "public_key": "ssh-ed25519 AAAA"}),
    ],
)
def test_creations_that_lists_show_late_and_deletions_that_they_show_long(path: str, sent: dict[str, object]) -> None:
    async def body(lab: Lab) -> None:
        await lab.fault({"do": "twist", "twist": {"hide_seconds": 8}}, match={"method": "POST", "path": path})
        row = await lab.post(path, sent)

        async def listed() -> bool:
            return row["id"] in {item["id"] for item in await lab.get(path)}

        assert not await listed()
        await asyncio.sleep(9)
        assert await listed()
        item = f"{path.rstrip('/')}/{row['id']}"
        await lab.fault({"do": "twist", "twist": {"linger_seconds": 8}}, match={"method": "DELETE", "path": item})
        await lab.call("DELETE", item)
        assert await listed()
        assert (await lab.call("DELETE", item)).status_code == 404
        await asyncio.sleep(9)
        assert not await listed()

    in_lab(body)


def test_a_lost_reply_of_a_creation_leaves_the_object() -> None:
    async def body(lab: Lab) -> None:
        for where, count in (("before", 0), ("after", 1)):
            await lab.fault({"do": "lose_reply", "where": where}, match={"method": "POST", "path": "/volumes"})
            with pytest.raises(httpx.ReadError):
                await lab.call("POST", "/volumes", {"name": "v"})
            assert len(await lab.get("/volumes")) == count

    in_lab(body)
