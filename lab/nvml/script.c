#define _GNU_SOURCE
#include "script.h"

#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define MAX_LINES 20000
#define MOST_XIDS 256

struct line { double when; int order; char *words; };

struct gpu gpus[MOST_GPUS];
struct machine machine;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct line lines[MAX_LINES];
static int line_count, next_line;
static double origin, looked;
static char current[4096];
static struct stat seen;
static uint64_t fired[MAX_LINES];
static int fired_count, watching;
static struct { int gpu; unsigned long long xid; } xids[MOST_XIDS];
static int xid_first, xid_count;

#define AS_NAME(name, value) #name,
static const char *names[] = {NUMBERS(AS_NAME)};
#define AS_DEFAULT(name, value) value,
static const double defaults[] = {NUMBERS(AS_DEFAULT)};

/* What the presets say otherwise than the numbers above, in the words of a script. */
static const struct { const char *name, *words; } presets[] = {
    {"h100", "model=NVIDIA_H100_80GB_HBM3"},
    {"h200", "model=NVIDIA_H200 memory_total=150754820096"},
    {"b200", "model=NVIDIA_B200 memory_total=191495143424 clock_memory=3996 clock_memory_max=3996 power_limit=1000 "
             "power_default=1000 power_max=1000 architecture=10"},
    {"a100", "model=NVIDIA_A100-SXM4-80GB memory_total=85899345920 gpm=0 power_limit=400 power_default=400 power_min=100 "
             "power_max=400 power=62 clock_sm=210 clock_graphics=210 clock_sm_max=1410 clock_graphics_max=1410 "
             "clock_memory=1593 clock_memory_max=1593 pcie_generation=4 pcie_generation_max=4 nvlinks=12 architecture=7 "
             "unsupported=nvmlDeviceGetGpuFabricInfoV unsupported=230"},
    {"l4", "model=NVIDIA_L4 memory_total=24152899584 gpm=0 power_limit=72 power_default=72 power_min=40 power_max=72 "
           "power=16 clock_sm=210 clock_graphics=210 clock_sm_max=2040 clock_graphics_max=2040 clock_memory=405 "
           "clock_memory_max=6251 pcie_generation=4 pcie_generation_max=4 pcie_width_max=16 nvlinks=0 architecture=8 "
           "unsupported=82 unsupported=nvmlDeviceGetGpuFabricInfoV unsupported=230"},
    {"v100", "model=Tesla_V100-SXM2-32GB memory_total=34359738368 gpm=0 power_limit=300 power_default=300 power_min=150 "
             "power_max=300 power=42 clock_sm=135 clock_graphics=135 clock_sm_max=1530 clock_graphics_max=1530 "
             "clock_memory=877 clock_memory_max=877 pcie_generation=3 pcie_generation_max=3 nvlinks=6 architecture=5 "
             "unsupported=nvmlDeviceGetRemappedRows unsupported=nvmlDeviceGetRowRemapperHistogram "
             "unsupported=142 unsupported=143 unsupported=144 unsupported=145 unsupported=nvmlDeviceGetGpuFabricInfoV "
             "unsupported=nvmlDeviceGetSramEccErrorStatus unsupported=230"},
};

void script_lock(void) { pthread_mutex_lock(&lock); }
void script_unlock(void) { pthread_mutex_unlock(&lock); }
void script_watch(int on) { watching = on; }

static double clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static uint64_t hash(const char *text) {
    uint64_t sum = 1469598103934665603u;
    for (; *text; text++) sum = (sum ^ (unsigned char)*text) * 1099511628211u;
    return sum;
}

/* A number and its unit; moves on behind it. */
static double amount(const char **text) {
    static const struct { const char *unit; double factor; } units[] = {
        {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0},
        {"ms", 1e-3}, {"k", 1e3}, {"M", 1e6}, {"G", 1e9},
    };
    char *end;
    double number = strtod(*text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        size_t length = strlen(units[i].unit);
        if (!strncmp(end, units[i].unit, length)) {
            *text = end + length;
            return number * units[i].factor;
        }
    }
    *text = end;
    return number;
}

static struct value parsed(const char *text, double when) {
    struct value value = {.since = when};
    value.base = amount(&text);
    if (*text == '+' || *text == '-') {
        value.rate = amount(&text);
        if (!strncmp(text, "/s", 2)) text += 2;
    }
    if (*text == '~') {
        text++;
        value.noise = amount(&text);
    }
    return value;
}

double script_value(const struct value *value, double now, unsigned salt) {
    double result = value->base + value->rate * (now - value->since);
    if (value->noise != 0) {
        uint64_t mixed = ((uint64_t)(now * 10) * 2654435761u + salt) * 0x9E3779B97F4A7C15u;
        result += value->noise * ((double)(mixed >> 40) / (1 << 23) - 1.0);
    }
    return result < 0 ? 0 : result;
}

double script_number(const struct gpu *gpu, enum number number, double now) {
    if (number == NUMBER_graphics_active && gpu->numbers[number].base < 0) number = NUMBER_utilization; /* the same thing */
    return script_value(&gpu->numbers[number], now, (unsigned)(gpu->index * 977 + number));
}

const struct rule *script_rule(const struct gpu *gpu, const char *function, enum rule_kind kind) {
    for (int i = gpu->rule_count - 1; i >= 0; i--) {
        const struct rule *rule = &gpu->rules[i];
        size_t length = strlen(rule->function);
        int whole = length && rule->function[length - 1] == '*';
        if (rule->kind == kind && (whole ? !strncmp(rule->function, function, length - 1) : !strcmp(rule->function, function)))
            return rule;
    }
    return NULL;
}

static void forget(struct gpu *gpu, const char *function) {
    int kept = 0;
    for (int i = 0; i < gpu->rule_count; i++)
        if (strcmp(function, "*") && strcmp(gpu->rules[i].function, function)) gpu->rules[kept++] = gpu->rules[i];
    gpu->rule_count = kept;
    if (!strcmp(function, "*"))
        gpu->numbers[NUMBER_lost] = gpu->numbers[NUMBER_reset_required] = (struct value){0};
}

static void add_rule(struct gpu *gpu, const char *value, enum rule_kind kind, double fallback) {
    if (gpu->rule_count == MOST_RULES) return;
    struct rule *rule = &gpu->rules[gpu->rule_count++];
    const char *colon = strchr(value, ':');
    snprintf(rule->function, sizeof rule->function, "%.*s", colon ? (int)(colon - value) : 79, value);
    rule->kind = kind;
    const char *argument = colon ? colon + 1 : "";
    rule->argument = colon ? amount(&argument) : fallback;
}

static void add_process(struct gpu *gpu, const char *value, double when) {
    unsigned pid = (unsigned)strtoul(value, NULL, 10);
    const char *colon = strchr(value, ':');
    struct value memory = parsed(colon ? colon + 1 : "0", when);
    int place = 0;
    while (place < gpu->process_count && gpu->processes[place].pid != pid) place++;
    if (!colon && place < gpu->process_count) /* it ended */
        gpu->processes[place] = gpu->processes[--gpu->process_count];
    else if (colon && place < MOST_PROCESSES) {
        gpu->processes[place] = (struct process){pid, memory};
        if (place == gpu->process_count) gpu->process_count++;
    }
}

static void set_all(struct gpu *gpu, const char *words, double when);

static void spaced(char *target, size_t size, const char *value) {
    snprintf(target, size, "%s", value);
    for (; *target; target++)
        if (*target == '_') *target = ' ';
}

static void set(struct gpu *gpu, const char *key, const char *value, double when) {
    if (!strcmp(key, "preset")) {
        for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
            if (!strcmp(presets[i].name, value)) set_all(gpu, presets[i].words, when);
    } else if (!strcmp(key, "model")) spaced(gpu->model, sizeof gpu->model, value);
    else if (!strcmp(key, "uuid")) snprintf(gpu->uuid, sizeof gpu->uuid, "%s", value);
    else if (!strcmp(key, "pci")) snprintf(gpu->pci, sizeof gpu->pci, "%s", value);
    else if (!strcmp(key, "fail")) add_rule(gpu, value, RULE_FAIL, 999);
    else if (!strcmp(key, "unsupported")) add_rule(gpu, value, RULE_FAIL, 3);
    else if (!strcmp(key, "hang")) add_rule(gpu, value, RULE_HANG, 0);
    else if (!strcmp(key, "slow")) add_rule(gpu, value, RULE_SLOW, 0.02);
    else if (!strcmp(key, "ok")) forget(gpu, value);
    else if (!strcmp(key, "process")) add_process(gpu, value, when);
    else if (!strcmp(key, "xid")) {
        if (watching && xid_count < MOST_XIDS) {
            int place = (xid_first + xid_count++) % MOST_XIDS;
            xids[place].gpu = gpu->index;
            xids[place].xid = strtoull(value, NULL, 10);
        }
    } else {
        for (int i = 0; i < COUNT_OF_NUMBERS; i++)
            if (!strcmp(names[i], key)) {
                gpu->numbers[i] = parsed(value, when);
                return;
            }
        fprintf(stderr, "stand-in NVML: no such setting: %s\n", key);
    }
}

static void set_all(struct gpu *gpu, const char *words, double when) {
    char copy[4096], *rest = copy, *word;
    snprintf(copy, sizeof copy, "%s", words);
    while ((word = strsep(&rest, " \t"))) {
        char *equals = strchr(word, '=');
        if (!*word) continue;
        if (!equals) fprintf(stderr, "stand-in NVML: not KEY=VALUE: %s\n", word);
        else {
            *equals = 0;
            set(gpu, word, equals + 1, when);
        }
    }
}

/* Whether ``3``, ``0-3``, ``1,5`` or ``*`` names this GPU. */
static int meant(const char *which, int index) {
    if (*which == '*') return 1;
    while (isdigit((unsigned char)*which)) {
        char *end;
        long first = strtol(which, &end, 10), last = first;
        if (*end == '-') last = strtol(end + 1, &end, 10);
        if (index >= first && index <= last) return 1;
        which = *end == ',' ? end + 1 : end;
    }
    return 0;
}

static void apply(const struct line *line) {
    char which[64];
    int used = 0;
    if (sscanf(line->words, "%63s %n", which, &used) != 1) return;
    uint64_t mark = hash(line->words) ^ (uint64_t)(line->when * 1000);
    int again = 0;
    for (int i = 0; i < fired_count && !again; i++) again = fired[i] == mark;
    int watched = watching;
    if (again) watching = 0; /* a script that is read anew fires no Xid twice */
    else if (fired_count < MAX_LINES) fired[fired_count++] = mark;
    for (int i = 0; i < machine.gpus; i++)
        if (meant(which, i)) set_all(&gpus[i], line->words + used, line->when);
    watching = watched;
}

static int by_time(const void *left, const void *right) {
    const struct line *a = left, *b = right;
    return a->when < b->when ? -1 : a->when > b->when ? 1 : a->order - b->order;
}

static void head(const char *words) {
    char copy[1024], *rest = copy, *word;
    snprintf(copy, sizeof copy, "%s", words);
    while ((word = strsep(&rest, " \t"))) {
        if (!strncmp(word, "gpus=", 5)) machine.gpus = atoi(word + 5);
        else if (!strncmp(word, "init=", 5)) machine.init = atoi(word + 5);
        else if (!strncmp(word, "driver=", 7)) snprintf(machine.driver, sizeof machine.driver, "%s", word + 7);
        else if (!strncmp(word, "seed=", 5)) snprintf(machine.seed, sizeof machine.seed, "%s", word + 5);
        else if (!strncmp(word, "start=", 6)) origin = strtod(word + 6, NULL);
    }
    if (machine.gpus < 0 || machine.gpus > MOST_GPUS) machine.gpus = MOST_GPUS;
}

static void fresh(void) {
    machine = (struct machine){.gpus = 8, .driver = "580.95.05", .seed = "node"};
}

static void reset(void) {
    for (int i = 0; i < MOST_GPUS; i++) {
        struct gpu *gpu = &gpus[i];
        memset(gpu, 0, sizeof *gpu);
        gpu->index = i;
        for (int k = 0; k < COUNT_OF_NUMBERS; k++) gpu->numbers[k].base = defaults[k];
        set(gpu, "preset", "h100", origin);
        char name[128];
        snprintf(name, sizeof name, "%s/%d", machine.seed, i);
        uint64_t one = hash(name) * 0x9E3779B97F4A7C15u, two = (one ^ (one >> 29)) * 0xBF58476D1CE4E5B9u;
        snprintf(gpu->uuid, sizeof gpu->uuid, "GPU-%08x-%04x-%04x-%04x-%012llx", (unsigned)(one >> 32),
                 (unsigned)(one >> 16) & 0xffff, (unsigned)one & 0xffff, (unsigned)(two >> 48),
                 (unsigned long long)two & 0xffffffffffffull);
        snprintf(gpu->pci, sizeof gpu->pci, "00000000:%02X:00.0", 0x18 + 0x10 * (i % 12) + i / 12);
    }
}

static void read_script(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) return;
    for (int i = 0; i < line_count; i++) free(lines[i].words);
    line_count = next_line = 0;
    fresh();
    char text[4096];
    while (fgets(text, sizeof text, file) && line_count < MAX_LINES) {
        text[strcspn(text, "\r\n#")] = 0;
        char *start = text + strspn(text, " \t");
        if (!strncmp(start, "node ", 5)) head(start + 5);
        else if (*start) {
            char *rest;
            double when = strtod(*start == '@' ? start + 1 : start, &rest);
            lines[line_count] = (struct line){*start == '@' ? when : when + origin, line_count, strdup(rest)};
            line_count++;
        }
    }
    fclose(file);
    qsort(lines, (size_t)line_count, sizeof *lines, by_time);
    reset();
}

void script_start(void) {
    if (origin != 0) return;
    origin = clock_now();
    fresh();
    reset();
    script_play();
}

double script_play(void) {
    double now = clock_now();
    const char *path = getenv("TRACKSIDE_NVML_SCRIPT");
    struct stat state;
    if (strcmp(path ? path : "", current)) { /* another script: all begins anew */
        snprintf(current, sizeof current, "%s", path ? path : "");
        memset(&seen, 0, sizeof seen);
        origin = now, looked = 0, fired_count = xid_count = line_count = next_line = 0;
        fresh();
        reset();
    }
    if (path && (now - looked > 0.05 || now < looked)) {
        looked = now;
        if (!stat(path, &state) &&
            (state.st_size != seen.st_size || state.st_ino != seen.st_ino ||
             memcmp(&state.st_mtim, &seen.st_mtim, sizeof state.st_mtim))) {
            seen = state;
            read_script(path);
        }
    }
    while (next_line < line_count && lines[next_line].when <= now) apply(&lines[next_line++]);
    return now;
}

int script_xid(unsigned long long *xid) {
    if (!xid_count) return -1;
    int place = xid_first;
    xid_first = (xid_first + 1) % MOST_XIDS;
    xid_count--;
    *xid = xids[place].xid;
    return xids[place].gpu;
}
