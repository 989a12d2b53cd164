/* A runtime that opens the driver by its name, as the real one does, and allocates through it. Nothing else: what is missing of
 * libascendcl.so the suite does by the driver. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

typedef int (*alloc_fn)(void **base, uint64_t bytes, uint64_t flag);

int rtMalloc(void **base, uint64_t bytes, uint32_t type, uint16_t module) {
    const uint64_t huge = 0x924400, ordinary = 0x904400;
    (void)module;
    void *driver = dlopen("libascend_hal.so", RTLD_NOW | RTLD_LOCAL);
    alloc_fn alloc = driver == NULL ? NULL : (alloc_fn)dlsym(driver, "halMemAlloc");
    if (alloc == NULL) return 507899;
    int error = type & 0x1000 ? 1 : alloc(base, bytes, huge);
    if (error != 0 && !(type & 0x800)) error = alloc(base, bytes, ordinary);
    return error;
}
