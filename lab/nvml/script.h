/* The script that the stand-in plays: what each GPU says, from when on. The format is described in README.md. */
#ifndef TRACKSIDE_SCRIPT_H
#define TRACKSIDE_SCRIPT_H

#include <stddef.h>

#define MOST_GPUS 64
#define MOST_RULES 64
#define MOST_PROCESSES 128
#define MOST_LINKS 18

/* Numbers that a script sets: name, and what it is where the script is silent. Memory in bytes, power in watts, clocks
 * in MHz, temperatures in degrees Celsius, times in seconds, energy in joules, shares in per cent as NVML has them. */
#define NUMBERS(N) \
    N(memory_total, 85520809984.0) N(memory_used, 4194304) N(memory_reserved, 591396864) \
    N(bar1_total, 137438953472.0) N(bar1_used, 25165824) \
    N(utilization, 0) N(memory_utilization, 0) N(encoder, 0) N(decoder, 0) N(jpeg, 0) N(optical_flow, 0) \
    N(clock_graphics, 345) N(clock_sm, 345) N(clock_memory, 2619) N(clock_video, 765) \
    N(clock_graphics_max, 1980) N(clock_sm_max, 1980) N(clock_memory_max, 2619) N(clock_video_max, 1545) \
    N(throttle, 1) N(temperature, 31) N(memory_temperature, 38) N(temperature_margin, 56) \
    N(limit_shutdown, 92) N(limit_slowdown, 89) N(limit_memory, 95) N(limit_operating, 87) \
    N(power, 71) N(power_limit, 700) N(power_default, 700) N(power_min, 200) N(power_max, 700) N(energy, 1.5e8) \
    N(violation_power, 0) N(violation_thermal, 0) N(violation_sync, 0) N(violation_board, 0) \
    N(violation_low_use, 0) N(violation_reliability, 0) N(violation_application, 0) N(violation_base, 0) \
    N(violation_sw_thermal, 0) N(violation_hw_thermal, 0) N(violation_brake, 0) \
    N(ecc, 1) N(ecc_corrected, 0) N(ecc_uncorrected, 0) N(ecc_corrected_life, 0) N(ecc_uncorrected_life, 0) \
    N(sram_exceeded, 0) \
    N(remap_corrected, 0) N(remap_uncorrected, 0) N(remap_pending, 0) N(remap_failed, 0) \
    N(banks_max, 640) N(banks_high, 0) N(banks_partial, 0) N(banks_low, 0) N(banks_none, 0) \
    N(retired_single, 0) N(retired_double, 0) N(retired_pending, 0) \
    N(pstate, 0) N(fan, 30) N(recovery_action, 0) N(fabric_state, 3) N(mig, 0) \
    N(pcie_generation, 5) N(pcie_generation_max, 5) N(pcie_width, 16) N(pcie_width_max, 16) \
    N(pcie_tx, 0) N(pcie_rx, 0) N(pcie_tx_total, 0) N(pcie_rx_total, 0) N(pcie_replays, 0) \
    N(nvlinks, 18) N(nvlink_tx_total, 0) N(nvlink_rx_total, 0) \
    N(nvlink_crc_flit, 0) N(nvlink_crc_data, 0) N(nvlink_replay, 0) N(nvlink_recovery, 0) N(nvlink_ecc, 0) \
    N(nvlink_faulty, 0) \
    N(gpm, 1) N(graphics_active, -1) N(sm_active, 0) N(sm_occupancy, 0) N(tensor_active, 0) N(tensor_half, 0) \
    N(tensor_double, 0) N(tensor_int, 0) N(dram_active, 0) N(fp64_active, 0) N(fp32_active, 0) N(fp16_active, 0) \
    N(int_active, 0) N(nvlink_tx, 0) N(nvlink_rx, 0) \
    N(architecture, 9) N(lost, 0) N(reset_required, 0)

#define AS_NUMBER(name, value) NUMBER_##name,
enum number { NUMBERS(AS_NUMBER) COUNT_OF_NUMBERS };
#undef AS_NUMBER

/* BASE+RATE/s~NOISE, counted from SINCE. */
struct value { double base, rate, noise, since; };

enum rule_kind { RULE_FAIL = 1, RULE_HANG, RULE_SLOW };
struct rule { char function[80]; enum rule_kind kind; double argument; };
struct process { unsigned pid; struct value memory; };

struct gpu {
    int index;
    char model[96], uuid[80], pci[32];
    struct value numbers[COUNT_OF_NUMBERS];
    struct rule rules[MOST_RULES];
    int rule_count;
    struct process processes[MOST_PROCESSES];
    int process_count;
};

struct machine { int gpus; int init; char driver[80]; char seed[64]; };

extern struct gpu gpus[MOST_GPUS];
extern struct machine machine;

/* Starts the clock of scripts and reads the script; once a process. */
void script_start(void);
/* Plays the script up to now. The caller holds script_lock. */
double script_play(void);
void script_lock(void);
void script_unlock(void);
double script_number(const struct gpu *gpu, enum number number, double now);
double script_value(const struct value *value, double now, unsigned salt);
const struct rule *script_rule(const struct gpu *gpu, const char *function, enum rule_kind kind);
/* The next Xid that came: its GPU, or -1. Only those that come while somebody watches are kept, as the driver does. */
int script_xid(unsigned long long *xid);
void script_watch(int on);

#endif
