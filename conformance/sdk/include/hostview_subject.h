/* What a view cache implements to be judged by `hostview check --subject ./libmy_cache.so`.
 *
 * A subject is a shared library that exports the functions below, with C linkage. It owns allocation: what must come
 * before what is half of what is judged. It makes every call of the driver through the platform table that it is given
 * (or opens the driver itself, and says so: HV_OWN_DRIVER), and reads and writes device memory through the views that
 * registration gave it, by plain loads and stores.
 *
 * Answers: HV_OK, HV_REFUSED where the cache itself refuses the call, or the platform's own error number (always over 0),
 * passed on as it came. Threading: calls come one at a time, from any thread, unless HV_THREAD_SAFE is set. Nothing that
 * is passed in may be kept after the call, but for the platform table, which lives as long as the subject. No pointer is
 * null unless it says so. Device addresses are numbers, never to be loaded from. Write nothing to standard output: it is
 * not yours.
 */
#ifndef HOSTVIEW_SUBJECT_H
#define HOSTVIEW_SUBJECT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HV_SUBJECT_VERSION 1u

#define HV_OK 0
#define HV_REFUSED (-1)

/* What a subject says of itself. What it does not claim is not judged. */
#define HV_THREAD_SAFE (1u << 0)        /* calls may come from two threads at once; not judged with HV_OWN_DRIVER */
#define HV_BUDGET (1u << 1)             /* never holds more than `budget` bytes mapped */
#define HV_FINALIZE_REENTRANT (1u << 2) /* finalize may be called again */
#define HV_REPORTS_HELD (1u << 3)       /* hv_subject_held tells the truth */
/* Opens libascend_hal.so itself, by that name, and libascendcl.so where it wants it: it is given no table, meets hostview's
 * drop-in libraries, and what it calls is read in their journal. */
#define HV_OWN_DRIVER (1u << 4)

typedef struct hv_info {
    uint32_t version;  /* HV_SUBJECT_VERSION, as the subject was compiled */
    uint32_t size;     /* sizeof(hv_info), likewise */
    uint64_t features; /* the bits above */
    uint64_t budget;   /* in bytes, with HV_BUDGET */
    const char *name;  /* what reports call it: letters, digits, - and _; the file's name where it is null */
    const char *build; /* its own version, in whatever form; may be null */
} hv_info;

/* The driver, as the subject may call it. Each answers 0 or an error number over 0, and changes nothing then. */
typedef struct hv_platform {
    uint32_t version; /* HV_SUBJECT_VERSION */
    uint32_t size;    /* sizeof(hv_platform) */
    void *context;    /* to be passed on; may be null */
    /* rtMalloc; policy 0 huge pages first, 1 huge pages only, 2 ordinary pages only. */
    int32_t (*alloc)(void *context, uint32_t device, uint64_t bytes, uint32_t policy, uint64_t *address);
    /* rtFree. */
    int32_t (*free)(void *context, uint64_t address);
    /* halHostRegister(DEV_SVM_MAP_HOST): the host's view of `bytes` from `address` on. */
    int32_t (*register_view)(void *context, uint32_t device, uint64_t address, uint64_t bytes, void **view);
    /* halHostUnregister, by the device address. */
    int32_t (*unregister_view)(void *context, uint32_t device, uint64_t address);
    /* Synchronous copies, host to device and device to host. */
    int32_t (*copy_in)(void *context, uint32_t device, uint64_t to, const void *from, uint64_t bytes);
    int32_t (*copy_out)(void *context, uint32_t device, void *to, uint64_t from, uint64_t bytes);
} hv_platform;

typedef struct hv_subject hv_subject;

/* Fills `info`; called before anything else. */
void hv_subject_info(hv_info *info);
/* A fresh cache, owned by the caller until destroy; null where there is none to be had. `platform` is null with HV_OWN_DRIVER;
 * then there is a fresh device each time, and nothing that was allocated or registered before is any more. */
hv_subject *hv_subject_create(const hv_platform *platform);
/* Allocates and takes note. */
int32_t hv_subject_alloc(hv_subject *subject, uint32_t device, uint64_t bytes, uint32_t policy, uint64_t *address);
/* Drops the view, then frees. Where the platform refuses either, the allocation lives on. */
int32_t hv_subject_free(hv_subject *subject, uint64_t address);
/* The view of a range; null in `view` with HV_OK where none can be had and device copies serve. */
int32_t hv_subject_acquire(hv_subject *subject, uint64_t address, uint64_t bytes, void **view);
/* The view of one acquire is no longer in use. */
void hv_subject_release(hv_subject *subject, uint64_t address);
/* Reads and writes, by view or by device copy. `into` and `from` may be null where `bytes` is 0. */
int32_t hv_subject_read(hv_subject *subject, uint64_t address, void *into, uint64_t bytes);
int32_t hv_subject_write(hv_subject *subject, uint64_t address, const void *from, uint64_t bytes);
/* What is mapped: allocations, and their bytes as they were asked for. */
void hv_subject_held(const hv_subject *subject, uint64_t *count, uint64_t *bytes);
/* Drops every view; nothing is handed out afterwards. */
int32_t hv_subject_finalize(hv_subject *subject);
/* Gives the subject back. Makes no call of the platform: what it still holds goes with the device. */
void hv_subject_destroy(hv_subject *subject);

#ifdef __cplusplus
}
#endif

#endif
