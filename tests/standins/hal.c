/*
 * A driver library that is not the simulator: device memory is a memfd, a view is a mapping of it, and the allocator is
 * lists of segments. Written from the driver's decision tables alone, so that the suite is also run on what it was not
 * written beside.
 *
 * Each macro makes another library of it:
 *   SHIFTED              views lie at another address than the device's
 *   REFUSES              the host can map nothing, and says so
 *   LIES                 the host can map nothing, and says that it can
 *   NO_UNREGISTER_EX     without halHostUnregisterEx
 *   NO_COPY              without drvMemcpy
 *   LOSES                every second registration is answered as done, and is not
 *   KEEPS_LAST           the end of a registration leaves its last page mapped
 *   CRASHES              the third call ends in a segmentation fault
 *   HANGS                the third call does not return
 *   PRINTS               writes to standard output, as some drivers do
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OK = 0, INVALID_DEVICE = 2, INVALID_VALUE = 3, OUT_OF_MEMORY = 6, PARA_ERROR = 8, NOT_EXIST = 11, BUSY = 13,
       IOCRL_FAIL = 17, FILE_OPS = 38, NOT_SUPPORT = 0xfffe };

#define MIB (1ull << 20)
#define SVM_LOW 0x100000000000ull
#define SVM_HIGH 0x180000000000ull
#define HEAPS 0x12C000000000ull
#define REGION (8ull << 30)
#define DEVICES 2
#define REGIONS (2 * DEVICES)
#define UNIT (2 * MIB)
#ifdef SHIFTED
#define SHIFT 0x100000000000ull
#else
#define SHIFT 0ull
#endif

/* A part of a kernel block: handed out, or waiting in the cache of freed blocks. */
struct segment {
    uint64_t address, bytes, block, freed;
    int used;
};

struct region {
    uint64_t low, page, threshold;
    struct segment segments[4096];
    size_t count;
    /* Of each page: 0 not registered, 1 registered, 2 the first of a registration. */
    uint8_t state[REGION / 4096];
    /* Of each 2 MiB: the kernel block it lies in, as its number from 1; 0 without memory. */
    uint32_t block[REGION / UNIT];
};

static struct region regions[REGIONS];
static int memory = -1;
static uint64_t ticks;
static unsigned blocks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void enter(void) {
    pthread_mutex_lock(&lock);
    if (memory < 0) {
        memory = memfd_create("device", 0);
        if (memory < 0 || ftruncate(memory, REGIONS * REGION)) _exit(70);
        for (int i = 0; i < REGIONS; i++) {
            regions[i].low = HEAPS + i * REGION;
            regions[i].page = i % 2 ? UNIT : 4096;
            regions[i].threshold = (i % 2 ? 36 : 18) * MIB;
        }
#ifdef PRINTS
        printf("driver: device 0 is up\n");
        fflush(stdout);
#endif
    }
#if defined(CRASHES) || defined(HANGS)
    static int calls;
    if (++calls == 3) {
#ifdef CRASHES
        *(volatile int *)NULL = 1;
#else
        for (;;) pause();
#endif
    }
#endif
}

static int leave(int code) {
    pthread_mutex_unlock(&lock);
    return code;
}

static struct region *region_of(uint64_t address) {
    if (address < HEAPS || address >= HEAPS + REGIONS * REGION) return NULL;
    return &regions[(address - HEAPS) / REGION];
}

static uint32_t block_at(const struct region *region, uint64_t address) {
    return address - region->low < REGION ? region->block[(address - region->low) / UNIT] : 0;
}

static uint8_t *state_at(struct region *region, uint64_t address) {
    return &region->state[(address - region->low) / region->page];
}

static int any_registered(struct region *region, uint64_t address, uint64_t bytes) {
    for (uint64_t at = address; at < address + bytes; at += region->page)
        if (*state_at(region, at)) return 1;
    return 0;
}

static void hide(uint64_t address, uint64_t bytes) {
    munmap((void *)(address + SHIFT), bytes);
}

static struct segment *cut(struct region *region, size_t index, uint64_t bytes) {
    struct segment *found = &region->segments[index];
    if (found->bytes > bytes) {
        struct segment rest = *found;
        rest.address += bytes;
        rest.bytes -= bytes;
        region->segments[region->count++] = rest;
        found->bytes = bytes;
    }
    found->used = 1;
    return found;
}

/* The lowest place for a kernel block of so many bytes; the end of the region where there is none. */
static uint64_t hole(const struct region *region, uint64_t bytes) {
    uint64_t from = 0;
    for (uint64_t at = 0; at < REGION && at - from < bytes; at += UNIT)
        if (region->block[at / UNIT]) from = at + UNIT;
    return from + bytes <= REGION ? from : REGION;
}

int halMemAlloc(void **pp, uint64_t size, uint64_t flag) {
    enter();
    uint64_t device = flag & 0x3ff;
    if (!pp || !size) return leave(INVALID_VALUE);
    if (device >= DEVICES) return leave(INVALID_DEVICE);
    struct region *region = &regions[2 * device + (flag >> 17 & 1)];
    if (size > REGION) return leave(OUT_OF_MEMORY);
    uint64_t bytes = (size + region->page - 1) / region->page * region->page;
    /* What fits exactly, the newest first; else the smallest larger one; else a kernel block. */
    ptrdiff_t best = -1;
    for (size_t i = 0; i < region->count; i++) {
        const struct segment *other = &region->segments[i], *than = best < 0 ? NULL : &region->segments[best];
        if (other->used || other->bytes < bytes) continue;
        if (!than || other->bytes < than->bytes || (other->bytes == than->bytes && other->freed > than->freed)) best = i;
    }
    if (best < 0) {
        uint64_t whole = (bytes + UNIT - 1) / UNIT * UNIT;
        uint64_t at = hole(region, whole);
        if (at + whole > REGION || region->count + 2 >= 4096) return leave(OUT_OF_MEMORY);
        /* What is left is handed out later, unless the block is too large for the cache or it is too little. */
        if (whole > region->threshold || whole - bytes < whole / 5) bytes = whole;
        region->segments[region->count] = (struct segment){region->low + at, whole, ++blocks, ++ticks, 0};
        for (uint64_t of = 0; of < whole; of += UNIT) region->block[(at + of) / UNIT] = blocks;
        best = region->count++;
    }
    *pp = (void *)cut(region, best, bytes)->address;
    return leave(OK);
}

/* Gives a whole block back to the kernel. */
static void give_back(struct region *region, size_t index) {
    struct segment gone = region->segments[index];
    for (uint64_t at = 0; at < gone.bytes; at += UNIT) region->block[(gone.address - region->low + at) / UNIT] = 0;
    region->segments[index] = region->segments[--region->count];
}

static int is_whole(const struct region *region, const struct segment *segment) {
    for (size_t i = 0; i < region->count; i++)
        if (&region->segments[i] != segment && region->segments[i].block == segment->block) return 0;
    return 1;
}

/* Over twice its threshold the cache gives whole blocks back: the smallest first, of one size the oldest, down to the
 * threshold. One with a registration goes back into the cache as the newest, and ends it. */
static void shrink(struct region *region) {
    uint64_t cached = 0;
    for (size_t i = 0; i < region->count; i++)
        if (!region->segments[i].used) cached += region->segments[i].bytes;
    if (cached <= region->threshold || cached < 2 * region->threshold) return;
    for (;;) {
        ptrdiff_t next = -1;
        for (size_t i = 0; i < region->count; i++) {
            const struct segment *other = &region->segments[i], *than = next < 0 ? NULL : &region->segments[next];
            if (other->used || !is_whole(region, other)) continue;
            if (!than || other->bytes < than->bytes || (other->bytes == than->bytes && other->freed < than->freed))
                next = i;
        }
        if (next < 0 || cached - region->segments[next].bytes <= region->threshold) return;
        struct segment *segment = &region->segments[next];
        if (any_registered(region, segment->address, segment->bytes)) {
            segment->freed = ++ticks;
            return;
        }
        cached -= segment->bytes;
        give_back(region, next);
    }
}

int halMemFree(void *pp) {
    enter();
    struct region *region = region_of((uint64_t)pp);
    if (!region) return leave(INVALID_VALUE);
    size_t index = 0;
    while (index < region->count && !(region->segments[index].used && region->segments[index].address == (uint64_t)pp))
        index++;
    if (index == region->count) return leave(INVALID_VALUE);
    struct segment *segment = &region->segments[index];
    if (segment->bytes > region->threshold && is_whole(region, segment)) {
        if (any_registered(region, segment->address, segment->bytes))
            return leave(segment->bytes > 512 * MIB ? IOCRL_FAIL : BUSY);
        give_back(region, index);
        return leave(OK);
    }
    segment->used = 0;
    segment->freed = ++ticks;
    for (size_t i = 0; i < region->count; i++) {
        struct segment *other = &region->segments[i];
        int behind = other->address == segment->address + segment->bytes;
        int before = other->address + other->bytes == segment->address;
        if (other == segment || other->used || other->block != segment->block || !(behind || before)) continue;
        if (before) segment->address = other->address;
        segment->bytes += other->bytes;
        /* The last takes the other's place; where that is this one, this one moves. */
        struct segment *last = &region->segments[--region->count];
        *other = *last;
        if (last == segment) segment = other;
        i = (size_t)-1;
    }
    if (is_whole(region, segment)) shrink(region);
    return leave(OK);
}

int halHostRegister(void *src, uint64_t size, unsigned flag, unsigned devid, void **dst) {
    enter();
    unsigned map = flag & 0xffff, process = flag >> 16 & 0xfff, read_only = flag >> 28 & 1;
    uint64_t from = (uint64_t)src;
    (void)devid;
    if (map >= 7 || process >= 6) return leave(NOT_SUPPORT);
    if (!dst) return leave(INVALID_VALUE);
    struct region *region = region_of(from);
    if (!region || !block_at(region, from)) return leave(PARA_ERROR);
    if (map != 2 || !size) return leave(PARA_ERROR);
    if (process) return leave(NOT_SUPPORT);
#if defined(REFUSES) || defined(LIES)
    return leave(NOT_SUPPORT);
#endif
    if (size > REGION) return leave(PARA_ERROR);
    uint64_t bytes = (size + region->page - 1) / region->page * region->page;
    if (from - region->low + bytes > REGION || from % region->page) return leave(PARA_ERROR);
    for (uint64_t at = from; at < from + bytes; at += region->page)
        if (*state_at(region, at) || !block_at(region, at)) return leave(PARA_ERROR);
#ifdef LOSES
    static int done;
    if (++done % 2 == 0) {
        *dst = (void *)(from + SHIFT);
        return leave(OK);
    }
#endif
    void *view = mmap((void *)(from + SHIFT), bytes, read_only ? PROT_READ : PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED_NOREPLACE, memory, (off_t)(from - HEAPS));
    if (view == MAP_FAILED) return leave(OUT_OF_MEMORY);
    for (uint64_t at = from; at < from + bytes; at += region->page) *state_at(region, at) = at == from ? 2 : 1;
    *dst = view;
    return leave(OK);
}

static int unregister(uint64_t from) {
    struct region *region = region_of(from);
    if (from < SVM_LOW || from >= SVM_HIGH) return FILE_OPS;
    if (!region || !block_at(region, from) || from % region->page || *state_at(region, from) != 2) return PARA_ERROR;
    uint64_t at = from;
    do {
        *state_at(region, at) = 0;
        at += region->page;
    } while (at < region->low + REGION && *state_at(region, at) == 1 && block_at(region, at) == block_at(region, from));
#ifdef KEEPS_LAST
    at -= 4096;
#endif
    hide(from, at - from);
    return OK;
}

int halHostUnregister(void *src, unsigned devid) {
    enter();
    (void)devid;
    return leave(unregister((uint64_t)src));
}

#ifndef NO_UNREGISTER_EX
int halHostUnregisterEx(void *src, unsigned devid, unsigned flag) {
    enter();
    (void)devid;
    if ((flag & 0xffff) >= 7 || (flag >> 16 & 0xfff) >= 6) return leave(NOT_SUPPORT);
    return leave(unregister((uint64_t)src));
}
#endif

/* Device memory that lies wholly in memory the kernel has given, as its place in the memfd; -1 for anything else. */
static off_t place(uint64_t address, size_t bytes) {
    const struct region *region = region_of(address);
    for (uint64_t at = address & ~(UNIT - 1); at < address + bytes; at += UNIT)
        if (!region || !block_at(region, at)) return -1;
    return (off_t)(address - HEAPS);
}

#ifdef NO_COPY
static
#endif
int drvMemcpy(uint64_t dst, size_t dest_max, uint64_t src, size_t count) {
    enter();
    int to = dst >= SVM_LOW && dst < SVM_HIGH, from = src >= SVM_LOW && src < SVM_HIGH;
    if (!dst || !src || !count || count > dest_max) return leave(INVALID_VALUE);
    if ((to && place(dst, count) < 0) || (from && place(src, count) < 0)) return leave(INVALID_VALUE);
    if (to && from) return leave(NOT_SUPPORT);
    ssize_t moved = to     ? pwrite(memory, (void *)src, count, place(dst, count))
                    : from ? pread(memory, (void *)dst, count, place(src, count))
                           : (memmove((void *)dst, (void *)src, count), (ssize_t)count);
    return leave(moved == (ssize_t)count ? OK : INVALID_VALUE);
}

int drvMemsetD8(uint64_t dst, size_t dest_max, uint8_t value, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int code = drvMemcpy(dst + i, dest_max - i, (uint64_t)&value, 1);
        if (code) return code;
    }
    return OK;
}

struct attribute { uint32_t kind, reserved[2], device, page, more[8]; };

int drvMemGetAttribute(uint64_t address, struct attribute *found) {
    memset(found, 0, sizeof *found);
    found->kind = 0x8;
    if (address < SVM_LOW || address >= SVM_HIGH) return OK;
    const struct region *region = region_of(address);
    if (!region || !block_at(region, address)) return NOT_EXIST;
    found->kind = 0x10;
    found->device = (uint32_t)(region - regions) / 2;
    found->page = (uint32_t)region->page;
    return OK;
}

int drvMemDeviceClose(uint32_t devid) { return devid < DEVICES ? OK : INVALID_DEVICE; }

int drvGetDevNum(uint32_t *count) {
    *count = DEVICES;
    return OK;
}

struct query { uint64_t features; uint32_t device; };

int halMemCtl(int type, void *in, size_t in_size, void *out, size_t *out_size) {
    if (type != 2 || in_size != sizeof(struct query)) return NOT_SUPPORT;
#ifdef REFUSES
    uint64_t can = 0;
#else
    uint64_t can = 1 << 1 | 1 << 2 | 1 << 3;
#endif
    *(uint64_t *)out = ((struct query *)in)->features & can;
    *out_size = sizeof(uint64_t);
    return OK;
}

int halGetSocVersion(uint32_t devid, char *name, uint32_t bytes) {
    if (devid >= DEVICES || bytes < 16) return INVALID_VALUE;
    strcpy(name, "Ascend910_9392");
    return OK;
}
