"""Prometheus node_exporter: host metrics."""

from __future__ import annotations

from collections.abc import Mapping

from trackside.catalog.dialect import Dialect, ForeignMetric
from trackside.catalog.labels import JOB_LABELS, MACHINE_LABELS, Label

_HOST: Mapping[str, ForeignMetric] = {
    "node_cpu_seconds_total": ForeignMetric("host_cpu_seconds_total"),
    "node_cpu_core_throttles_total": ForeignMetric("host_cpu_throttles_total"),
    "node_load1": ForeignMetric("host_load1"),
    "node_procs_blocked": ForeignMetric("host_tasks_blocked"),
    "node_memory_MemTotal_bytes": ForeignMetric("host_memory_total_bytes"),
    "node_memory_MemAvailable_bytes": ForeignMetric("host_memory_available_bytes"),
    "node_memory_MemFree_bytes": ForeignMetric("host_memory_free_bytes"),
    "node_memory_SwapFree_bytes": ForeignMetric("host_swap_free_bytes"),
    "node_memory_SwapTotal_bytes": ForeignMetric("host_swap_total_bytes"),
    "node_memory_Shmem_bytes": ForeignMetric("host_shm_bytes"),
    "node_vmstat_pgmajfault": ForeignMetric("host_major_faults_total"),
    "node_vmstat_oom_kill": ForeignMetric("host_oom_kills_total"),
    "node_edac_correctable_errors_total": ForeignMetric("host_memory_errors_total", labels={"kind": "correctable"}),
    "node_edac_uncorrectable_errors_total": ForeignMetric("host_memory_errors_total", labels={"kind": "uncorrectable"}),
    "node_disk_io_time_seconds_total": ForeignMetric("host_disk_busy_seconds_total"),
    "node_disk_read_bytes_total": ForeignMetric("host_disk_read_bytes_total"),
    "node_disk_written_bytes_total": ForeignMetric("host_disk_written_bytes_total"),
    "node_filesystem_avail_bytes": ForeignMetric("host_filesystem_free_bytes"),
    "node_filesystem_size_bytes": ForeignMetric("host_filesystem_total_bytes"),
    "node_filesystem_files_free": ForeignMetric("host_filesystem_files_free"),
    "node_filesystem_readonly": ForeignMetric("host_filesystem_read_only"),
    "node_filesystem_device_error": ForeignMetric("host_filesystem_error"),
    "node_nfs_rpcs_total": ForeignMetric("host_nfs_calls_total"),
    "node_nfs_rpc_retransmissions_total": ForeignMetric("host_nfs_retransmissions_total"),
    "node_mountstats_nfs_total_read_bytes_total": ForeignMetric("host_nfs_read_bytes_total"),
    "node_mountstats_nfs_total_write_bytes_total": ForeignMetric("host_nfs_written_bytes_total"),
    "node_mountstats_nfs_operations_requests_total": ForeignMetric("host_nfs_operations_total"),
    "node_mountstats_nfs_operations_request_time_seconds_total": ForeignMetric("host_nfs_operation_seconds_total"),
    "node_hwmon_temp_celsius": ForeignMetric("host_temperature_celsius"),
    "node_thermal_zone_temp": ForeignMetric("host_temperature_celsius"),
    "node_hwmon_power_average_watt": ForeignMetric("host_power_watts"),
    "node_rapl_package_joules_total": ForeignMetric("host_energy_joules_total"),
    "node_boot_time_seconds": ForeignMetric("host_boot_time_seconds"),
    "node_time_seconds": ForeignMetric("host_time_seconds"),
    "node_timex_offset_seconds": ForeignMetric("host_clock_offset_seconds"),
    "node_scrape_collector_success": ForeignMetric("exporter_success"),
}

_PRESSURE: Mapping[str, ForeignMetric] = {
    f"node_pressure_{resource}_{word}_seconds_total": ForeignMetric(
        "host_pressure_seconds_total", labels={"resource": resource, "level": level}
    )
    for resource, words in {"cpu": ("waiting",), "io": ("waiting", "stalled"), "memory": ("waiting", "stalled")}.items()
    for word, level in (("waiting", "some"), ("stalled", "full"))
    if word in words
}

_NETWORK: Mapping[str, ForeignMetric] = {
    "node_network_transmit_bytes_total": ForeignMetric("host_network_tx_bytes_total"),
    "node_network_receive_bytes_total": ForeignMetric("host_network_rx_bytes_total"),
    "node_network_transmit_errs_total": ForeignMetric("host_network_errors_total", labels={"kind": "tx_errors"}),
    "node_network_receive_errs_total": ForeignMetric("host_network_errors_total", labels={"kind": "rx_errors"}),
    "node_network_transmit_drop_total": ForeignMetric("host_network_errors_total", labels={"kind": "tx_dropped"}),
    "node_network_receive_drop_total": ForeignMetric("host_network_errors_total", labels={"kind": "rx_dropped"}),
    "node_network_up": ForeignMetric("host_network_up"),
    "node_network_speed_bytes": ForeignMetric("host_network_speed_bytes_per_second"),
    "node_netstat_Tcp_RetransSegs": ForeignMetric("host_tcp_retransmissions_total"),
}

_PORT_ERRORS = {
    "symbol_error_total": "symbol",
    "link_error_recovery_total": "link_recovery",
    "local_link_integrity_errors_total": "local_integrity",
    "excessive_buffer_overrun_errors_total": "buffer_overrun",
    "port_errors_received_total": "receive",
    "port_receive_remote_physical_errors_total": "receive_remote",
    "port_receive_switch_relay_errors_total": "receive_relay",
    "port_constraint_errors_received_total": "receive_constraint",
    "port_constraint_errors_transmitted_total": "transmit_constraint",
    "port_discards_received_total": "discards_received",
    "port_discards_transmitted_total": "discards",
    "vl15_dropped_total": "management_dropped",
}
_INFINIBAND: Mapping[str, ForeignMetric] = {
    "node_infiniband_port_data_transmitted_bytes_total": ForeignMetric("host_infiniband_tx_bytes_total"),
    "node_infiniband_port_data_received_bytes_total": ForeignMetric("host_infiniband_rx_bytes_total"),
    "node_infiniband_link_downed_total": ForeignMetric("host_infiniband_link_downs_total"),
    "node_infiniband_port_transmit_wait_total": ForeignMetric("host_infiniband_waits_total"),
    "node_infiniband_state_id": ForeignMetric("host_infiniband_state"),
    "node_infiniband_rate_bytes_per_second": ForeignMetric("host_infiniband_rate_bytes_per_second"),
    **{
        f"node_infiniband_{name}": ForeignMetric("host_infiniband_errors_total", labels={"kind": kind})
        for name, kind in _PORT_ERRORS.items()
    },
    # The AWS build of node_exporter, for the Elastic Fabric Adapter.
    "node_amazonefa_tx_bytes": ForeignMetric("host_infiniband_tx_bytes_total"),
    "node_amazonefa_rx_bytes": ForeignMetric("host_infiniband_rx_bytes_total"),
    "node_amazonefa_rx_drops": ForeignMetric("host_infiniband_errors_total", labels={"kind": "discards_received"}),
}

DIALECT = Dialect(
    id="node-exporter",
    title="node_exporter",
    names={**_HOST, **_PRESSURE, **_NETWORK, **_INFINIBAND},
    labels={
        **MACHINE_LABELS,
        **JOB_LABELS,
        **dict.fromkeys(("device", "chip", "controller", "package", "type", "path"), Label("device")),
        **dict.fromkeys(("sensor", "zone"), Label("sensor")),
        **dict.fromkeys(("cpu", "core"), Label("cpu")),
        "mode": Label("mode"),
        "port": Label("port"),
        **dict.fromkeys(("mountpoint", "export"), Label("mountpoint")),
        "operation": Label("op"),
        "collector": Label("collector"),
    },
)
