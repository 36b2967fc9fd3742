"""The programs that a pod's PATH offers in place of hardware: `nvidia-smi`, and `mountpoint` where needed.

They are POSIX shell, for the smallest image has nothing else. The values are baked in when the container starts.
"""

from __future__ import annotations

import shlex
import uuid
from dataclasses import dataclass

DRIVER_VERSION = "550.127.05"
CUDA_VERSION = "12.4"
_NAMESPACE = uuid.UUID("6c1f6a2e-9d0b-4d8a-8f55-6b0d3c1f7a10")


@dataclass(frozen=True, slots=True)
class Gpus:
    """What a pod was rented with. `name` is as NVIDIA's own tool prints it."""

    pod_id: str
    name: str
    count: int
    memory_mib: int

    def uuids(self) -> tuple[str, ...]:
        """One stable `GPU-…` identifier per GPU."""
        return tuple(f"GPU-{uuid.uuid5(_NAMESPACE, f'{self.pod_id}/{i}')}" for i in range(self.count))


def nvidia_smi(gpus: Gpus) -> str:
    """The text of an executable `nvidia-smi` for these GPUs."""
    values = (
        f"NAME={shlex.quote(gpus.name)}",
        f"COUNT={gpus.count}",
        f"MEMORY={gpus.memory_mib}",
        f"DRIVER={DRIVER_VERSION}",
        f"CUDA={CUDA_VERSION}",
        f"UUIDS={shlex.quote(' '.join(gpus.uuids()))}",
    )
    return "#!/bin/sh\n" + "\n".join(values) + "\n" + _NVIDIA_SMI


def mountpoint(*, volume_attached: bool) -> str:
    """The text of a `mountpoint` for confined pods: the truth about `/mnt`, and the system's own about the rest."""
    return f"#!/bin/sh\nATTACHED={int(volume_attached)}\n" + _MOUNTPOINT_CONFINED


def mountpoint_from_mountinfo() -> str:
    """The text of a `mountpoint` for pods whose host has none."""
    return "#!/bin/sh\n" + _MOUNTPOINT_MOUNTINFO


_NVIDIA_SMI = r"""
bad() { echo "$1" >&2; echo "Please run 'nvidia-smi -h' for help." >&2; exit 2; }
# The words after "set --" are split on purpose: neither identifiers nor indices contain blanks.
uuid_of() { u=$1; set -- $UUIDS; shift "$u"; echo "$1"; }
bus_of() { printf '00000000:%02X:00.0' "$(($1 + 1))"; }

query='' apps='' header=1 units=1 list='' long='' only='' format=''
while [ $# -gt 0 ]; do
  case "$1" in
    -L|--list-gpus) list=1 ;;
    -q|--query) long=1 ;;
    --query-gpu=*) query=${1#*=} ;;
    --query-gpu) shift; query=$1 ;;
    --query-compute-apps=*|--query-apps=*) apps=${1#*=} ;;
    --query-compute-apps|--query-apps) shift; apps=$1 ;;
    --format=*) format=${1#*=} ;;
    --format) shift; format=$1 ;;
    -i|--id) shift; only=$1 ;;
    -i=*|--id=*) only=${1#*=} ;;
    -h|--help) echo "NVIDIA System Management Interface -- v$DRIVER (simulated)"
      echo "nvidia-smi [-L] [-q] [-i ID] [--query-gpu=FIELDS --format=csv[,noheader][,nounits]]"; exit 0 ;;
    --version) echo "NVIDIA-SMI version  : $DRIVER"; echo "NVML version        : ${DRIVER%.*}"
      echo "DRIVER version      : $DRIVER"; echo "CUDA Version        : $CUDA"; exit 0 ;;
    *) bad "Invalid combination of input arguments: $1 is not known to the simulated nvidia-smi." ;;
  esac
  shift
done

if [ "$COUNT" -eq 0 ]; then echo "No devices were found"; exit 6; fi

chosen=''
if [ -z "$only" ]; then
  i=0; while [ "$i" -lt "$COUNT" ]; do chosen="$chosen $i"; i=$((i + 1)); done
else
  old=$IFS; IFS=,; set -f; set -- $only; IFS=$old; set +f
  for id in "$@"; do
    i=0; hit=''
    while [ "$i" -lt "$COUNT" ]; do
      if [ "$id" = "$i" ] || [ "$id" = "$(uuid_of "$i")" ]; then hit=$i; fi
      i=$((i + 1))
    done
    [ -n "$hit" ] || { echo "No devices were found"; exit 6; }
    chosen="$chosen $hit"
  done
fi

if [ -n "$list" ]; then
  for i in $chosen; do echo "GPU $i: $NAME (UUID: $(uuid_of "$i"))"; done
  exit 0
fi

if [ -n "$query$apps" ]; then
  case ",$format," in
    *,csv,*) ;;
    *) bad '"--format=" switch is missing. It is required when using a "--query-*" switch.' ;;
  esac
  case ",$format," in *,noheader,*) header='' ;; esac
  case ",$format," in *,nounits,*) units='' ;; esac
fi
if [ -n "$apps" ]; then
  [ -z "$header" ] || echo "$apps" | sed 's/,/, /g'
  exit 0
fi

# sets v (value) and w (unit) for the field $1 of the GPU $2
value() {
  w=''
  case "$1" in
    index) v=$2 ;;
    name|gpu_name) v=$NAME ;;
    count) v=$COUNT ;;
    uuid|gpu_uuid) v=$(uuid_of "$2") ;;
    serial|gpu_serial) v=$((1650000000000 + $2)) ;;
    driver_version) v=$DRIVER ;;
    pci.bus_id|gpu_bus_id) v=$(bus_of "$2") ;;
    pci.bus) v=$(printf '0x%02X' "$(($2 + 1))") ;;
    memory.total) v=$MEMORY w=MiB ;;
    memory.used) v=0 w=MiB ;;
    memory.reserved) v=0 w=MiB ;;
    memory.free) v=$MEMORY w=MiB ;;
    utilization.gpu|utilization.memory) v=0 w=% ;;
    temperature.gpu) v=$((30 + $2)) ;;
    temperature.memory) v='[N/A]' ;;
    power.draw|power.draw.instant|power.draw.average) v=70.00 w=W ;;
    power.limit|enforced.power.limit|power.max_limit|power.default_limit) v=700.00 w=W ;;
    clocks.sm|clocks.current.sm|clocks.gr|clocks.current.graphics) v=345 w=MHz ;;
    clocks.mem|clocks.current.memory) v=1593 w=MHz ;;
    fan.speed) v='[N/A]' ;;
    pstate) v=P0 ;;
    compute_mode) v=Default ;;
    compute_cap) v='9.0' ;;
    persistence_mode) v=Enabled ;;
    display_active|display_mode) v=Disabled ;;
    ecc.mode.current) v=Enabled ;;
    mig.mode.current|mig.mode.pending) v=Disabled ;;
    pcie.link.gen.current|pcie.link.gen.max) v=5 ;;
    pcie.link.width.current|pcie.link.width.max) v=16 ;;
    vbios_version) v=96.00.61.00.01 ;;
    timestamp) v=$(date '+%Y/%m/%d %H:%M:%S.000') ;;
    *) return 1 ;;
  esac
}

if [ -n "$query" ]; then
  query=$(echo "$query" | sed 's/ *, */,/g; s/^ *//; s/ *$//')
  old=$IFS; IFS=,; set -f; set -- $query; IFS=$old; set +f
  line=''
  for field in "$@"; do
    value "$field" 0 || { echo "Field \"$field\" is not a valid field to query."; exit 2; }
    case "$field" in gpu_name) field=name ;; gpu_uuid) field=uuid ;; gpu_bus_id) field=pci.bus_id ;; esac
    if [ -n "$units" ] && [ -n "$w" ]; then field="$field [$w]"; fi
    line="$line${line:+, }$field"
  done
  [ -z "$header" ] || echo "$line"
  for i in $chosen; do
    line=''
    for field in "$@"; do
      value "$field" "$i"
      if [ -n "$units" ] && [ -n "$w" ]; then v="$v $w"; fi
      line="$line${line:+, }$v"
    done
    echo "$line"
  done
  exit 0
fi

if [ -n "$long" ]; then
  echo; echo "==============NVSMI LOG=============="; echo
  printf '%-42s: %s\n' "Timestamp" "$(date '+%a %b %e %H:%M:%S %Y')" "Driver Version" "$DRIVER" "CUDA Version" "$CUDA"
  echo; printf '%-42s: %s\n' "Attached GPUs" "$COUNT"
  for i in $chosen; do
    echo "GPU $(bus_of "$i")"
    printf '    %-38s: %s\n' "Product Name" "$NAME" "GPU UUID" "$(uuid_of "$i")"
    echo "    FB Memory Usage"
    printf '        %-34s: %s\n' "Total" "$MEMORY MiB" "Used" "0 MiB" "Free" "$MEMORY MiB"
  done
  exit 0
fi

rule="+-----------------------------------------+------------------------+----------------------+"
wide="+-----------------------------------------------------------------------------------------+"
date '+%a %b %e %H:%M:%S %Y'
echo "$wide"
printf '| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n' "$DRIVER" "$DRIVER" "$CUDA"
echo "$rule"
echo "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |"
echo "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |"
echo "|                                         |                        |               MIG M. |"
echo "$rule" | tr - =
for i in $chosen; do
  printf '| %3d  %-28.28s  On | %s     Off |                    0 |\n' "$i" "$NAME" "$(bus_of "$i")"
  printf '| N/A   %dC    P0             70W /  700W |' "$((30 + i))"
  printf '%8dMiB / %6dMiB |      0%%      Default |\n' 0 "$MEMORY"
  echo "|                                         |                        |             Disabled |"
  echo "$rule"
done
echo
echo "$wide"
echo "| Processes:                                                                              |"
echo "|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |"
echo "|        ID   ID                                                               Usage      |"
echo "$wide" | tr - =
echo "|  No running processes found                                                             |"
echo "$wide"
"""

_MOUNTPOINT_ARGUMENTS = r"""
quiet='' path=''
for word in "$@"; do
  case "$word" in
    -q|--quiet) quiet=1 ;;
    -d|-x|--fs-devno|--devno|--nofollow) ;;
    *) path=$word ;;
  esac
done
[ -n "$path" ] || { echo "mountpoint: bad usage" >&2; exit 1; }
yes() { [ -n "$quiet" ] || echo "$path is a mountpoint"; exit 0; }
no() { [ -n "$quiet" ] || echo "$path is not a mountpoint"; exit 32; }
"""

_MOUNTPOINT_CONFINED = (
    _MOUNTPOINT_ARGUMENTS
    + r"""
case "$path" in
  /mnt|/mnt/) if [ "$ATTACHED" = 1 ]; then yes; else no; fi ;;
esac
for real in /usr/bin/mountpoint /bin/mountpoint; do
  [ -x "$real" ] && exec "$real" "$@"
done
no
"""
)

_MOUNTPOINT_MOUNTINFO = (
    _MOUNTPOINT_ARGUMENTS
    + r"""
[ -e "$path" ] || { [ -n "$quiet" ] || echo "mountpoint: $path: No such file or directory" >&2; exit 1; }
place=$(cd "$path" 2>/dev/null && pwd -P) || no
while read -r _ _ _ _ where _; do
  [ "$where" = "$place" ] && yes
done < /proc/self/mountinfo
no
"""
)
