/* A libnvidia-ml.so.1 without a GPU: it answers what a script says (README.md). Layouts and codes are those of NVML's
 * API as nvidia-ml-py declares them, which the tests hold it against. Versions of structures are checked as the driver
 * does it. */
#define _GNU_SOURCE
#include "script.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       TIMEOUT = 10, GPU_IS_LOST = 15, RESET_REQUIRED = 16, INSUFFICIENT_RESOURCES = 23, VERSION_MISMATCH = 25 };

#define API __attribute__((visibility("default")))

typedef struct { unsigned long long total, free_, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free_, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, device_id, subsystem; char id[32]; } pci_t;
typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute; } process_t;
typedef struct { unsigned long long reference, violation; } violation_t;
typedef union { double d; unsigned u; unsigned long ul; unsigned long long ull; long long ll; int i; unsigned short s; } any_t;
typedef struct { uint32_t field, scope; int64_t time, latency; unsigned type, code; any_t value; } field_t;
typedef struct { void *device; unsigned long long type, data; unsigned instance, compute; } event_t;
typedef struct { unsigned max, high, partial, low, none; } banks_t;
typedef struct { unsigned version, sensor; int temperature; } temperature_t;
typedef struct { unsigned version; int margin; } margin_t;
typedef struct { unsigned version; unsigned long long counts[11]; unsigned exceeded; } sram_t;
typedef struct { unsigned version; uint8_t cluster[16]; unsigned status; uint32_t clique; unsigned state; uint32_t health; } fabric_v2_t;
typedef struct { fabric_v2_t first; uint8_t summary; } fabric_v3_t;
typedef struct { unsigned metric, code; double value; char *short_name, *long_name, *unit; } gpm_metric_t;
typedef struct { int gpu; double time, values[COUNT_OF_NUMBERS]; } gpm_sample_t;
typedef struct { unsigned version, count; gpm_sample_t *first, *second; gpm_metric_t metrics[]; } gpm_get_t;
typedef struct { unsigned version, supported; } gpm_support_t;

static int starts, open_sets;
static unsigned long long registered; /* for events: a bit a GPU */

/* Sizes for the tests, by the names that nvidia-ml-py gives the structures. */
API size_t standin_sizeof(const char *name) {
    static const struct { const char *name; size_t size; } sizes[] = {
        {"c_nvmlMemory_t", sizeof(memory_t)}, {"c_nvmlMemory_v2_t", sizeof(memory_v2_t)},
        {"c_nvmlUtilization_t", sizeof(utilization_t)}, {"nvmlPciInfo_t", sizeof(pci_t)},
        {"c_nvmlProcessInfo_v3_t", sizeof(process_t)}, {"c_nvmlViolationTime_t", sizeof(violation_t)},
        {"c_nvmlFieldValue_t", sizeof(field_t)}, {"c_nvmlEventData_t", sizeof(event_t)},
        {"c_nvmlRowRemapperHistogramValues", sizeof(banks_t)}, {"c_nvmlTemperature_v1_t", sizeof(temperature_t)},
        {"c_nvmlMarginTemperature_v1_t", sizeof(margin_t)}, {"c_nvmlEccSramErrorStatus_v1_t", sizeof(sram_t)},
        {"c_nvmlGpuFabricInfo_v2_t", sizeof(fabric_v2_t)}, {"c_nvmlGpuFabricInfo_v3_t", sizeof(fabric_v3_t)},
        {"c_nvmlGpmMetric_t", sizeof(gpm_metric_t)}, {"c_nvmlGpmSupport_t", sizeof(gpm_support_t)},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(sizes[i].name, name)) return sizes[i].size;
    return 0;
}

/* What each question goes through: the script is played up to now, then its rules for this GPU and function apply.
 * On SUCCESS the lock is held and ``now`` is set. */
static int enter(void *device, const char *function, struct gpu **found, double *now) {
    struct gpu *gpu = device;
    if (!starts) return UNINITIALIZED;
    if (gpu < gpus || gpu >= gpus + MOST_GPUS || (char *)gpu != (char *)&gpus[gpu - gpus]) return INVALID_ARGUMENT;
    script_lock();
    *now = script_play();
    const struct rule *slow = script_rule(gpu, function, RULE_SLOW);
    if (slow) {
        useconds_t wait = (useconds_t)(slow->argument * 1e6);
        script_unlock();
        usleep(wait);
        script_lock();
    }
    while (script_rule(gpu, function, RULE_HANG)) {
        script_unlock();
        usleep(20000);
        script_lock();
        *now = script_play();
    }
    const struct rule *fail = script_rule(gpu, function, RULE_FAIL);
    int code = fail ? (int)fail->argument : SUCCESS;
    if (script_number(gpu, NUMBER_reset_required, *now) != 0) code = RESET_REQUIRED;
    if (script_number(gpu, NUMBER_lost, *now) != 0) code = GPU_IS_LOST;
    if (code) script_unlock();
    *found = gpu;
    return code;
}

#define ASK(device) \
    struct gpu *gpu; double now; \
    int refused = enter(device, __func__, &gpu, &now); \
    if (refused) return refused
#define DONE do { script_unlock(); return SUCCESS; } while (0)
#define REFUSE(code) do { script_unlock(); return code; } while (0)
#define NOW(name) script_number(gpu, NUMBER_##name, now)
#define WHOLE(name) ((unsigned long long)NOW(name))

/* -- the library and its devices */

API int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    script_lock();
    script_start();
    script_play();
    int code = machine.init;
    if (!code) starts++;
    script_unlock();
    return code;
}
API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlShutdown(void) { return starts ? (starts--, SUCCESS) : UNINITIALIZED; }

API const char *nvmlErrorString(int code) {
    static const char *texts[] = {
        [SUCCESS] = "Success", [UNINITIALIZED] = "Uninitialized", [INVALID_ARGUMENT] = "Invalid Argument",
        [NOT_SUPPORTED] = "Not Supported", [NO_PERMISSION] = "Insufficient Permissions", [NOT_FOUND] = "Not Found",
        [INSUFFICIENT_SIZE] = "Insufficient Size", [9] = "Driver Not Loaded", [TIMEOUT] = "Timeout",
        [GPU_IS_LOST] = "GPU is lost", [RESET_REQUIRED] = "GPU requires reset",
        [18] = "Driver/library version mismatch", [VERSION_MISMATCH] = "Argument version mismatch",
    };
    return code >= 0 && code <= VERSION_MISMATCH && texts[code] ? texts[code] : "Unknown Error";
}

static int text(const char *value, char *target, unsigned size) {
    return (unsigned)snprintf(target, size, "%s", value) < size ? SUCCESS : INSUFFICIENT_SIZE;
}
API int nvmlSystemGetDriverVersion(char *target, unsigned size) {
    return starts ? text(machine.driver, target, size) : UNINITIALIZED;
}
API int nvmlSystemGetNVMLVersion(char *target, unsigned size) {
    char version[96];
    snprintf(version, sizeof version, "13.%s", machine.driver);
    return text(version, target, size);
}
API int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = 13000, starts ? SUCCESS : UNINITIALIZED; }

API int nvmlDeviceGetCount_v2(unsigned *count) { return *count = (unsigned)machine.gpus, starts ? SUCCESS : UNINITIALIZED; }

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (!starts) return UNINITIALIZED;
    if (index >= (unsigned)machine.gpus) return INVALID_ARGUMENT;
    ASK(&gpus[index]);
    *device = gpu;
    DONE;
}
static int by_text(const char *wanted, void **device, int pci) {
    if (!starts) return UNINITIALIZED;
    for (int i = 0; i < machine.gpus; i++)
        if (!strcasecmp(pci ? gpus[i].pci : gpus[i].uuid, wanted)) return *device = &gpus[i], SUCCESS;
    return NOT_FOUND;
}
API int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { return by_text(uuid, device, 0); }
API int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) { return by_text(id, device, 1); }

API int nvmlDeviceGetName(void *device, char *target, unsigned size) {
    ASK(device);
    int code = text(gpu->model, target, size);
    REFUSE(code);
}
API int nvmlDeviceGetUUID(void *device, char *target, unsigned size) {
    ASK(device);
    int code = text(gpu->uuid, target, size);
    REFUSE(code);
}
API int nvmlDeviceGetPciInfo_v3(void *device, pci_t *pci) {
    ASK(device);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->id, sizeof pci->id, "%s", gpu->pci);
    sscanf(gpu->pci, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->legacy, sizeof pci->legacy, "%s", gpu->pci + 4);
    pci->device_id = 0x233010DE;
    DONE;
}

/* -- single values */

#define UNSIGNED(function, expression) \
    API int function(void *device, unsigned *value) { ASK(device); *value = (unsigned)(expression); DONE; }

UNSIGNED(nvmlDeviceGetIndex, gpu->index)
UNSIGNED(nvmlDeviceGetMinorNumber, gpu->index)
UNSIGNED(nvmlDeviceGetArchitecture, NOW(architecture))
UNSIGNED(nvmlDeviceGetPerformanceState, NOW(pstate))
UNSIGNED(nvmlDeviceGetPowerUsage, NOW(power) * 1000)
UNSIGNED(nvmlDeviceGetPowerManagementLimit, NOW(power_limit) * 1000)
UNSIGNED(nvmlDeviceGetPowerManagementDefaultLimit, NOW(power_default) * 1000)
UNSIGNED(nvmlDeviceGetEnforcedPowerLimit, NOW(power_limit) * 1000)
UNSIGNED(nvmlDeviceGetFanSpeed, NOW(fan))
UNSIGNED(nvmlDeviceGetPcieReplayCounter, NOW(pcie_replays))
UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, NOW(pcie_generation))
UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, NOW(pcie_generation_max))
UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, NOW(pcie_width))
UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, NOW(pcie_width_max))
UNSIGNED(nvmlDeviceGetRetiredPagesPendingStatus, NOW(retired_pending))

#define COUNTED(function, expression) \
    API int function(void *device, unsigned long long *value) { ASK(device); *value = (unsigned long long)(expression); DONE; }

COUNTED(nvmlDeviceGetTotalEnergyConsumption, NOW(energy) * 1000)
COUNTED(nvmlDeviceGetCurrentClocksEventReasons, NOW(throttle))
COUNTED(nvmlDeviceGetCurrentClocksThrottleReasons, NOW(throttle))

#define SAMPLED(function, name) \
    API int function(void *device, unsigned *value, unsigned *period_us) { \
        ASK(device); *value = (unsigned)NOW(name); *period_us = 167000; DONE; }

SAMPLED(nvmlDeviceGetEncoderUtilization, encoder)
SAMPLED(nvmlDeviceGetDecoderUtilization, decoder)
SAMPLED(nvmlDeviceGetJpgUtilization, jpeg)
SAMPLED(nvmlDeviceGetOfaUtilization, optical_flow)

/* -- values by kind */

static int kind_of(void *device, const char *function, const enum number *kinds, unsigned count, unsigned kind, double scale,
                   unsigned *value) {
    struct gpu *gpu;
    double now;
    int refused = enter(device, function, &gpu, &now);
    if (refused) return refused;
    if (kind >= count) REFUSE(INVALID_ARGUMENT);
    *value = (unsigned)(script_number(gpu, kinds[kind], now) * scale);
    DONE;
}
#define KINDS(function, scale, ...) \
    API int function(void *device, unsigned kind, unsigned *value) { \
        static const enum number kinds[] = {__VA_ARGS__}; \
        return kind_of(device, __func__, kinds, sizeof kinds / sizeof *kinds, kind, scale, value); }

KINDS(nvmlDeviceGetClockInfo, 1, NUMBER_clock_graphics, NUMBER_clock_sm, NUMBER_clock_memory, NUMBER_clock_video)
KINDS(nvmlDeviceGetMaxClockInfo, 1, NUMBER_clock_graphics_max, NUMBER_clock_sm_max, NUMBER_clock_memory_max, NUMBER_clock_video_max)
KINDS(nvmlDeviceGetTemperature, 1, NUMBER_temperature)
KINDS(nvmlDeviceGetTemperatureThreshold, 1, NUMBER_limit_shutdown, NUMBER_limit_slowdown, NUMBER_limit_memory, NUMBER_limit_operating)

API int nvmlDeviceGetPcieThroughput(void *device, unsigned kind, unsigned *value) { /* KB/s, over 20 ms */
    ASK(device);
    *value = (unsigned)((kind ? NOW(pcie_rx) : NOW(pcie_tx)) / 1000);
    DONE;
}
API int nvmlDeviceGetTemperatureV(void *device, temperature_t *asked) {
    ASK(device);
    if (asked->version != 0x100000C) REFUSE(VERSION_MISMATCH);
    if (asked->sensor) REFUSE(INVALID_ARGUMENT);
    asked->temperature = (int)NOW(temperature);
    DONE;
}
API int nvmlDeviceGetMarginTemperature(void *device, margin_t *asked) {
    ASK(device);
    if (asked->version != 0x1000008) REFUSE(VERSION_MISMATCH);
    asked->margin = (int)NOW(temperature_margin);
    DONE;
}
API int nvmlDeviceGetPowerManagementLimitConstraints(void *device, unsigned *low, unsigned *high) {
    ASK(device);
    *low = (unsigned)(NOW(power_min) * 1000), *high = (unsigned)(NOW(power_max) * 1000);
    DONE;
}
API int nvmlDeviceGetEccMode(void *device, unsigned *current, unsigned *pending) {
    ASK(device);
    *current = *pending = (unsigned)NOW(ecc);
    DONE;
}
API int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    ASK(device);
    *current = *pending = (unsigned)NOW(mig);
    DONE;
}
API int nvmlDeviceGetTotalEccErrors(void *device, unsigned uncorrected, unsigned life, unsigned long long *count) {
    ASK(device);
    if (!NOW(ecc)) REFUSE(NOT_SUPPORTED);
    *count = uncorrected ? (life ? WHOLE(ecc_uncorrected_life) : WHOLE(ecc_uncorrected))
                         : (life ? WHOLE(ecc_corrected_life) : WHOLE(ecc_corrected));
    DONE;
}
API int nvmlDeviceGetViolationStatus(void *device, unsigned policy, violation_t *time) {
    static const int policies[] = {NUMBER_violation_power, NUMBER_violation_thermal, NUMBER_violation_sync,
                                   NUMBER_violation_board, NUMBER_violation_low_use, NUMBER_violation_reliability,
                                   -1, -1, -1, -1, NUMBER_violation_application, NUMBER_violation_base};
    ASK(device);
    if (policy > 11 || policies[policy] < 0) REFUSE(INVALID_ARGUMENT);
    time->reference = (unsigned long long)(now * 1e6);
    time->violation = (unsigned long long)(script_number(gpu, (enum number)policies[policy], now) * 1e9);
    DONE;
}

/* -- structures */

static unsigned long long used(const struct gpu *gpu, double now) {
    double sum = script_number(gpu, NUMBER_memory_used, now);
    for (int i = 0; i < gpu->process_count; i++) sum += script_value(&gpu->processes[i].memory, now, gpu->processes[i].pid);
    double most = script_number(gpu, NUMBER_memory_total, now) - script_number(gpu, NUMBER_memory_reserved, now);
    return (unsigned long long)(sum > most ? most : sum);
}
API int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    ASK(device);
    memory->total = WHOLE(memory_total);
    memory->used = used(gpu, now) + WHOLE(memory_reserved); /* the old call counts what is reserved as used */
    memory->free_ = memory->total - memory->used;
    DONE;
}
API int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2_t *memory) {
    ASK(device);
    if (memory->version != 0x2000028) REFUSE(VERSION_MISMATCH);
    memory->total = WHOLE(memory_total), memory->reserved = WHOLE(memory_reserved), memory->used = used(gpu, now);
    memory->free_ = memory->total - memory->reserved - memory->used;
    DONE;
}
API int nvmlDeviceGetBAR1MemoryInfo(void *device, memory_t *memory) {
    ASK(device);
    memory->total = WHOLE(bar1_total), memory->used = WHOLE(bar1_used), memory->free_ = memory->total - memory->used;
    DONE;
}
API int nvmlDeviceGetUtilizationRates(void *device, utilization_t *rates) {
    ASK(device);
    double share = NOW(utilization), memory = NOW(memory_utilization);
    *rates = (utilization_t){(unsigned)(share > 100 ? 100 : share), (unsigned)(memory > 100 ? 100 : memory)};
    DONE;
}
API int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    ASK(device);
    *corrected = (unsigned)NOW(remap_corrected), *uncorrected = (unsigned)NOW(remap_uncorrected);
    *pending = (unsigned)NOW(remap_pending), *failed = (unsigned)NOW(remap_failed);
    DONE;
}
API int nvmlDeviceGetRowRemapperHistogram(void *device, banks_t *banks) {
    ASK(device);
    *banks = (banks_t){(unsigned)NOW(banks_max), (unsigned)NOW(banks_high), (unsigned)NOW(banks_partial),
                       (unsigned)NOW(banks_low), (unsigned)NOW(banks_none)};
    DONE;
}
API int nvmlDeviceGetSramEccErrorStatus(void *device, sram_t *status) {
    ASK(device);
    if (status->version != 0x1000068) REFUSE(VERSION_MISMATCH);
    memset(status->counts, 0, sizeof status->counts);
    status->exceeded = NOW(sram_exceeded) != 0;
    DONE;
}
API int nvmlDeviceGetGpuFabricInfoV(void *device, fabric_v3_t *info) {
    ASK(device);
    unsigned version = info->first.version;
    if (version != 0x2000024 && version != 0x3000028) REFUSE(VERSION_MISMATCH);
    memset(info->first.cluster, 7, sizeof info->first.cluster);
    info->first.status = SUCCESS, info->first.clique = 0, info->first.state = (unsigned)NOW(fabric_state), info->first.health = 0;
    if (version == 0x3000028) info->summary = 1;
    DONE;
}
static int processes(void *device, const char *function, unsigned *count, process_t *list) {
    struct gpu *gpu;
    double now;
    int refused = enter(device, function, &gpu, &now);
    if (refused) return refused;
    unsigned room = *count;
    *count = (unsigned)gpu->process_count;
    if (room < *count) REFUSE(INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < *count; i++)
        list[i] = (process_t){gpu->processes[i].pid,
                              (unsigned long long)script_value(&gpu->processes[i].memory, now, gpu->processes[i].pid),
                              0xFFFFFFFF, 0xFFFFFFFF};
    DONE;
}
API int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process_t *list) {
    return processes(device, __func__, count, list);
}
API int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, process_t *list) {
    (void)list;
    ASK(device);
    *count = 0;
    DONE;
}

/* -- NVLink */

API int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) {
    ASK(device);
    if (link >= NOW(nvlinks)) REFUSE(NOT_SUPPORTED);
    *active = 1;
    DONE;
}
static unsigned long long on_link(const struct gpu *gpu, double now, unsigned link, enum number number) {
    return link == script_number(gpu, NUMBER_nvlink_faulty, now) ? (unsigned long long)script_number(gpu, number, now) : 0;
}
API int nvmlDeviceGetNvLinkErrorCounter(void *device, unsigned link, unsigned counter, unsigned long long *count) {
    static const enum number counters[] = {NUMBER_nvlink_replay, NUMBER_nvlink_recovery, NUMBER_nvlink_crc_flit,
                                           NUMBER_nvlink_crc_data, NUMBER_nvlink_ecc};
    ASK(device);
    if (link >= NOW(nvlinks) || counter > 4) REFUSE(link < 18 && counter <= 4 ? NOT_SUPPORTED : INVALID_ARGUMENT);
    *count = on_link(gpu, now, link, counters[counter]);
    DONE;
}

/* -- fields */

static const struct { unsigned field, type; int number; double scale; } fields[] = {
    /* types: 0 double, 1 unsigned int, 3 unsigned long long */
    {1, 1, NUMBER_ecc, 1}, {3, 3, NUMBER_ecc_corrected, 1}, {4, 3, NUMBER_ecc_uncorrected, 1},
    {5, 3, NUMBER_ecc_corrected_life, 1}, {6, 3, NUMBER_ecc_uncorrected_life, 1},
    {29, 1, NUMBER_retired_single, 1}, {30, 1, NUMBER_retired_double, 1}, {31, 1, NUMBER_retired_pending, 1},
    {38, 3, NUMBER_nvlink_crc_flit, 1}, {45, 3, NUMBER_nvlink_crc_data, 1}, {52, 3, NUMBER_nvlink_replay, 1},
    {59, 3, NUMBER_nvlink_recovery, 1}, {74, 3, NUMBER_violation_power, 1e9}, {75, 3, NUMBER_violation_thermal, 1e9},
    {76, 3, NUMBER_violation_sync, 1e9}, {77, 3, NUMBER_violation_board, 1e9}, {78, 3, NUMBER_violation_low_use, 1e9},
    {79, 3, NUMBER_violation_reliability, 1e9}, {80, 3, NUMBER_violation_application, 1e9},
    {81, 3, NUMBER_violation_base, 1e9}, {82, 1, NUMBER_memory_temperature, 1}, {83, 3, NUMBER_energy, 1000},
    {91, 1, NUMBER_nvlinks, 1}, {94, 1, NUMBER_pcie_replays, 1}, {138, 3, NUMBER_nvlink_tx_total, 1.0 / 1024},
    {139, 3, NUMBER_nvlink_rx_total, 1.0 / 1024}, {142, 1, NUMBER_remap_corrected, 1}, {143, 1, NUMBER_remap_uncorrected, 1},
    {144, 1, NUMBER_remap_pending, 1}, {145, 1, NUMBER_remap_failed, 1}, {160, 3, NUMBER_nvlink_ecc, 1},
    {185, 1, NUMBER_power, 1000}, {186, 1, NUMBER_power, 1000}, {187, 1, NUMBER_power_min, 1000},
    {188, 1, NUMBER_power_max, 1000}, {189, 1, NUMBER_power_default, 1000}, {190, 1, NUMBER_power_limit, 1000},
    {197, 3, NUMBER_pcie_tx_total, 1}, {198, 3, NUMBER_pcie_rx_total, 1}, {230, 1, NUMBER_recovery_action, 1},
    /* NVLink 5: each of a link, which the scope names */
    {202, 3, NUMBER_nvlink_tx_total, 1}, {204, 3, NUMBER_nvlink_rx_total, 1}, {208, 3, NUMBER_nvlink_crc_flit, 1},
    {215, 3, NUMBER_nvlink_recovery, 1}, {221, 3, NUMBER_nvlink_crc_data, 1}, {219, 3, NUMBER_nvlink_replay, 1},
    {269, 3, NUMBER_violation_sw_thermal, 1e9}, {270, 3, NUMBER_violation_hw_thermal, 1e9}, {271, 3, NUMBER_violation_brake, 1e9},
};

static void answer(const struct gpu *gpu, double now, field_t *asked) {
    char name[16];
    snprintf(name, sizeof name, "%u", asked->field);
    const struct rule *fail = script_rule(gpu, name, RULE_FAIL);
    asked->time = (int64_t)(now * 1e6), asked->latency = 0;
    asked->code = fail ? (unsigned)fail->argument : NOT_SUPPORTED;
    if (fail) return;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (fields[i].field != asked->field) continue;
        if (asked->field >= 3 && asked->field <= 6 && !NOW(ecc)) return;
        int all = asked->scope == 0xFFFFFFFF, blackwell = NOW(architecture) >= 10;
        double value = script_number(gpu, (enum number)fields[i].number, now) * fields[i].scale;
        if (asked->field == 138 || asked->field == 139) {
            if (!NOW(nvlinks) || blackwell || (!all && asked->scope >= NOW(nvlinks))) return;
            if (!all) value /= NOW(nvlinks);
        }
        if (asked->field == 38 || asked->field == 45 || asked->field == 52 || asked->field == 59 || asked->field == 160) {
            if (!NOW(nvlinks) || blackwell) return;
        }
        if (asked->field > 200 && asked->field < 223) {
            if (!blackwell || asked->scope >= NOW(nvlinks)) return;
            if (asked->field < 205) value /= NOW(nvlinks);
            else if (asked->scope != NOW(nvlink_faulty)) value = 0;
        }
        asked->code = SUCCESS, asked->type = fields[i].type, asked->value.ull = 0;
        if (fields[i].type == 1) asked->value.u = (unsigned)value;
        else asked->value.ull = (unsigned long long)value;
        return;
    }
}
API int nvmlDeviceGetFieldValues(void *device, int count, field_t *asked) {
    ASK(device);
    if (count < 1) REFUSE(INVALID_ARGUMENT);
    for (int i = 0; i < count; i++) answer(gpu, now, &asked[i]);
    DONE;
}

/* -- events: Xids only */

API int nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *types) { ASK(device); *types = 0x1F; DONE; }
API int nvmlEventSetCreate(void **set) { return *set = &open_sets, open_sets++, starts ? SUCCESS : UNINITIALIZED; }
API int nvmlEventSetFree(void *set) { return set == &open_sets ? (open_sets--, registered = 0, script_watch(0), SUCCESS) : INVALID_ARGUMENT; }
API int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
    ASK(device);
    if (set != &open_sets || !types) REFUSE(INVALID_ARGUMENT);
    script_watch(1);
    registered |= 1ull << gpu->index;
    DONE;
}
API int nvmlEventSetWait_v2(void *set, event_t *event, unsigned timeout_ms) {
    if (!starts) return UNINITIALIZED;
    if (set != &open_sets) return INVALID_ARGUMENT;
    for (double waited = 0;; waited += 5) {
        script_lock();
        double now = script_play();
        unsigned long long xid = 0;
        int index = script_xid(&xid), lost = 0;
        for (int i = 0; i < machine.gpus; i++)
            lost |= (registered >> i & 1) && script_number(&gpus[i], NUMBER_lost, now) != 0;
        script_unlock();
        if (index >= 0) {
            *event = (event_t){&gpus[index], 0x8, xid, 0xFFFFFFFF, 0xFFFFFFFF};
            return SUCCESS;
        }
        if (lost) return GPU_IS_LOST; /* as long as a GPU that is lost is in the set, so says the driver */
        if (waited >= timeout_ms) return TIMEOUT;
        usleep(timeout_ms < 5 ? timeout_ms * 1000 : 5000);
    }
}

/* -- GPM */

static const struct { unsigned metric; int number; double scale; } gpm[] = {
    {1, NUMBER_graphics_active, 1}, {2, NUMBER_sm_active, 1}, {3, NUMBER_sm_occupancy, 1}, {4, NUMBER_int_active, 1},
    {5, NUMBER_tensor_active, 1}, {6, NUMBER_tensor_double, 1}, {7, NUMBER_tensor_half, 1}, {9, NUMBER_tensor_int, 1},
    {10, NUMBER_dram_active, 1}, {11, NUMBER_fp64_active, 1}, {12, NUMBER_fp32_active, 1}, {13, NUMBER_fp16_active, 1},
    {20, NUMBER_pcie_tx, 1.0 / 1048576}, {21, NUMBER_pcie_rx, 1.0 / 1048576},
    {60, NUMBER_nvlink_rx, 1.0 / 1048576}, {61, NUMBER_nvlink_tx, 1.0 / 1048576},
};

API int nvmlGpmQueryDeviceSupport(void *device, gpm_support_t *support) {
    ASK(device);
    if (support->version != 1) REFUSE(VERSION_MISMATCH);
    support->supported = NOW(gpm) != 0;
    DONE;
}
API int nvmlGpmSampleAlloc(gpm_sample_t **sample) {
    *sample = calloc(1, sizeof **sample);
    return *sample ? SUCCESS : INSUFFICIENT_RESOURCES;
}
API int nvmlGpmSampleFree(gpm_sample_t *sample) { return free(sample), SUCCESS; }
API int nvmlGpmSampleGet(void *device, gpm_sample_t *sample) {
    ASK(device);
    if (!NOW(gpm)) REFUSE(NOT_SUPPORTED);
    sample->gpu = gpu->index, sample->time = now;
    for (int i = 0; i < COUNT_OF_NUMBERS; i++) sample->values[i] = script_number(gpu, (enum number)i, now);
    DONE;
}
API int nvmlGpmMetricsGet(gpm_get_t *asked) { /* between two samples: the mean of both */
    if (!starts) return UNINITIALIZED;
    if (asked->version != 1) return VERSION_MISMATCH;
    gpm_sample_t *first = asked->first, *second = asked->second;
    if (!first || !second || first->gpu != second->gpu || first->time <= 0 || second->time <= first->time) return INVALID_ARGUMENT;
    ASK(&gpus[first->gpu]);
    for (unsigned i = 0; i < asked->count; i++) {
        gpm_metric_t *metric = &asked->metrics[i];
        metric->code = NOT_SUPPORTED, metric->value = 0, metric->short_name = metric->long_name = metric->unit = "";
        for (size_t k = 0; k < sizeof gpm / sizeof *gpm; k++)
            if (gpm[k].metric == metric->metric) {
                metric->code = SUCCESS;
                metric->value = (first->values[gpm[k].number] + second->values[gpm[k].number]) / 2 * gpm[k].scale;
            }
    }
    (void)gpu, (void)now;
    DONE;
}
