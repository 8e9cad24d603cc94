"""Polar as an environment of NVIDIA's NeMo Gym: an agent server (`agent`) and a resources server (`resources`).

Made for nemo-gym 0.7.0. Both run in NeMo Gym's process and environment, where `nemo-gym` is installed beside Polar.
"""
