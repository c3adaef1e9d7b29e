"""Machines that one does not have, to plan for: what their makers publish, and what is assumed of the rest.

Each figure has its source; "assumed" marks what nobody publishes.
What a processor reads of its memory's peak, and computes of its arithmetic's, is assumed alike for all.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.devices.disk import ReadSettings
from edgespec.devices.machine import BASELINE, Machine
from edgespec.devices.matmuls import Matmuls
from edgespec.devices.rates import ReadRate

GIB = 2**30
MEMORY_SHARE = 0.7  # of the peak, which matmuls with one row read; assumed (desktop memory: 60-85 %)
COMPUTE_SHARE = 0.5  # of the peak, which matmuls with many rows compute; assumed
FLASH_SHARE = 0.9  # of the published rate, which large direct reads reach; assumed
SYSTEM = 1.5e9  # bytes that system and desktop keep; assumed
NEON2, NEON4, AVX2 = 16, 32, 32  # fp32 operations a cycle of a core with 2 or 4 NEON pipes, or 2 of AVX2


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    label: str
    memory: Figure  # bytes
    bandwidth: Figure  # GB/s of the memory, peak
    flash: Figure  # GB/s of large sequential reads
    cores: Figure
    gflops: Figure  # of the cores together in fp32, peak

    def machine(self) -> Machine:
        """What a plan goes by."""
        read = self.bandwidth.value * MEMORY_SHARE
        return Machine(
            total=int(self.memory.value),
            available=int(self.memory.value - SYSTEM) - BASELINE,
            baseline=BASELINE,
            cores=int(self.cores.value),
            memory_gbps=read,
            disk=ReadRate(self.flash.value * FLASH_SHARE, ReadSettings()),
            matmuls=Matmuls.of_rates(read, self.gflops.value * COMPUTE_SHARE),
        )


def _cores(count: int, ghz: float, a_cycle: int, what: str) -> tuple[Figure, Figure]:
    """The cores, and their arithmetic."""
    said = f"{count} x {ghz:g} GHz x {a_cycle} a cycle; pipes assumed by the core's kind"
    return Figure(count, what), Figure(count * ghz * a_cycle, said)


def _laptop(name: str, memory: int, nvme: bool) -> Preset:
    bandwidth = {
        8: Figure(42.6, "two channels of DDR4-2666 (JEDEC); assumed fitted"),
        16: Figure(51.2, "two channels of DDR4-3200 (JEDEC); assumed fitted"),
        32: Figure(76.8, "two channels of DDR5-4800 (JEDEC); assumed fitted"),
    }[memory]
    flash = Figure(0.55, "SATA 6 Gbit/s; 550 MB/s is what its SSDs state (Samsung 870 EVO: 560)")
    if nvme:
        flash = Figure(3.5, "PCIe 3.0 x4; Samsung 970 EVO Plus data sheet: 3,500 MB/s")
    if nvme and memory == 32:
        flash = Figure(5.0, "PCIe 4.0 x4; data sheets say 4,700 to 7,000 MB/s (Samsung 980 PRO); assumed")
    label = f"laptop, {memory} GB, {'NVMe' if nvme else 'SATA'} flash"
    size = Figure(memory * GIB, "by name")
    count = 8 if memory == 32 else 4
    return Preset(name, label, size, bandwidth, flash, *_cores(count, 3.0, AVX2, "assumed"))


_APPLE_FLASH = "256 GB model, measured by reviewers: "

PRESETS = (
    Preset(
        "jetson-orin-nano-8gb",
        "NVIDIA Jetson Orin Nano 8GB, Super mode, its CPU",
        Figure(8 * GIB, "NVIDIA Jetson Orin Nano Series data sheet"),
        Figure(102.0, "NVIDIA, Jetson Orin Nano Super: 102 GB/s (68 before)"),
        Figure(3.0, "M.2 x4 of PCIe 3.0 on the developer kit: 3.5 GB/s at most; drive assumed"),
        *_cores(6, 1.7, NEON2, "Jetson Orin Nano Super: 6 Cortex-A78AE at 1.7 GHz"),
    ),
    Preset(
        "jetson-agx-orin",
        "NVIDIA Jetson AGX Orin 64GB, its CPU",
        Figure(64 * GIB, "NVIDIA Jetson AGX Orin Series data sheet"),
        Figure(204.8, "NVIDIA Jetson AGX Orin Series data sheet"),
        Figure(5.0, "M.2 x4 of PCIe 4.0 on the developer kit; drive assumed"),
        *_cores(12, 2.2, NEON2, "NVIDIA: 12 Cortex-A78AE at 2.2 GHz"),
    ),
    Preset(
        "raspberry-pi-5",
        "Raspberry Pi 5, 8 GB, NVMe",
        Figure(8 * GIB, "Raspberry Pi 5 product brief"),
        Figure(17.1, "Raspberry Pi 5 product brief: LPDDR4X-4267, 32 bits wide"),
        Figure(0.45, "product brief: PCIe 2.0 x1, 500 MB/s before protocol; reviewers read 430 to 450"),
        *_cores(4, 2.4, NEON2, "product brief: 4 Cortex-A76 at 2.4 GHz"),
    ),
    Preset(
        "mac-m1-8gb",
        "Apple M1 (MacBook Air, mini), 8 GB, its CPU",
        Figure(8 * GIB, "by name"),
        Figure(68.3, "LPDDR4X-4266, 128 bits wide"),
        Figure(2.7, _APPLE_FLASH + "2,676 MB/s (MacRumors, 2020)"),
        *_cores(4, 3.2, NEON4, "Apple: 4 performance cores"),
    ),
    Preset(
        "mac-m2-8gb",
        "Apple M2 (MacBook Air, mini), 8 GB, its CPU",
        Figure(8 * GIB, "by name"),
        Figure(100.0, "Apple M2: 100 GB/s"),
        Figure(1.6, _APPLE_FLASH + "1,576 MB/s (Max Tech, 2024); larger models about 3,000"),
        *_cores(4, 3.5, NEON4, "Apple: 4 performance cores"),
    ),
    Preset(
        "mac-m4-16gb",
        "Apple M4 (MacBook Air, mini), 16 GB, its CPU",
        Figure(16 * GIB, "by name"),
        Figure(120.0, "Apple M4: 120 GB/s"),
        Figure(2.9, "assumed as the M3's, 2,880 MB/s (Max Tech, 2024)"),
        *_cores(4, 4.4, NEON4, "Apple: 4 performance cores"),
    ),
    Preset(
        "snapdragon-x-elite-16gb",
        "laptop with Snapdragon X Elite, 16 GB, its CPU",
        Figure(16 * GIB, "by name; what most laptops with it have"),
        Figure(136.0, "Qualcomm: LPDDR5X-8533, 8 channels, 136 GB/s"),
        Figure(3.5, "Qualcomm: NVMe over PCIe 4.0; drive assumed"),
        *_cores(12, 3.8, NEON4, "Qualcomm: 12 Oryon at 3.8 GHz"),
    ),
    Preset(
        "snapdragon-8-gen-3",
        "phone with Snapdragon 8 Gen 3, 12 GB, its CPU",
        Figure(12 * GIB, "assumed; phones have 8 to 16"),
        Figure(76.8, "Qualcomm: LPDDR5X at 4,800 MHz, 64 bits wide"),
        Figure(3.5, "UFS 4.0 states 4,200 MB/s (Samsung); what an app reads is assumed"),
        *_cores(6, 3.1, NEON2, "Qualcomm: Cortex-X4 at 3.3 GHz and 5 A720 at 3.0 to 3.2"),
    ),
    _laptop("laptop-8gb-sata", 8, nvme=False),
    _laptop("laptop-8gb-nvme", 8, nvme=True),
    _laptop("laptop-16gb-sata", 16, nvme=False),
    _laptop("laptop-16gb-nvme", 16, nvme=True),
    _laptop("laptop-32gb-nvme", 32, nvme=True),
)
