/*
 * The calls of the driver, libascend_hal.so, as hostview's drop-in library has them.
 *
 * hostview's own text, written from the calls' signatures; no part of any vendor's driver.
 */
#ifndef HOSTVIEW_ASCEND_HAL_H
#define HOSTVIEW_ASCEND_HAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The low 16 bits of a registration's flag word. */
enum {
    HOST_MEM_MAP_DEV = 0,
    HOST_SVM_MAP_DEV = 1,
    DEV_SVM_MAP_HOST = 2,
    HOST_MEM_MAP_DEV_PCIE_TH = 3,
    DEV_MEM_MAP_HOST = 4,
    HOST_MEM_MAP_DMA = 5,
    HOST_IO_MAP_DEV = 6
};
/* In a registration's flag word: the host may read and not write. */
#define MEM_REGISTER_READ_ONLY (1u << 28)

/* Of halMemCtl: which kinds of mapping there are; bits of the answer: 1 ordinary pages, 2 the process' memory, 3 huge pages. */
#define CTRL_TYPE_SUPPORT_FEATURE 2
struct supportFeaturePara {
    unsigned long long support_feature;
    unsigned int devid;
};

struct DVattribute {
    uint32_t memType;
    uint32_t resv1;
    uint32_t resv2;
    uint32_t devId;
    uint32_t pageSize;
    uint32_t resv[8];
};

/* Every call gives 0 or a number of drvError_t. Sizes are in bytes. */
int halMemAlloc(void **pp, unsigned long long size, unsigned long long flag);
int halMemFree(void *pp);
int halHostRegister(void *srcPtr, uint64_t size, uint32_t flag, uint32_t devid, void **dstPtr);
int halHostUnregister(void *srcPtr, uint32_t devid);
int halHostUnregisterEx(void *srcPtr, uint32_t devid, uint32_t flag);
int halMemHostGetDevPointer(void *srcPtr, uint32_t devid, void **dstPtr);
int halHostRegisterCapabilities(uint32_t devid, uint32_t accModuleType, uint32_t *memMapCap);
int halMemCtl(int type, void *paramValue, size_t paramValueSize, void *outValue, size_t *outSizeRet);
bool halSupportFeature(uint32_t devid, uint32_t feature);
int halGetDeviceInfo(uint32_t devid, int32_t moduleType, int32_t infoType, int64_t *value);
int halGetSocVersion(uint32_t devid, char *socVersion, uint32_t len);
int halMemcpy(void *dst, size_t dstSize, void *src, size_t count, void *info);
int drvMemcpy(uint64_t dst, size_t destMax, uint64_t src, size_t byteCount);
int drvMemsetD8(uint64_t dst, size_t destMax, uint8_t value, size_t num);
int drvMemGetAttribute(uint64_t vptr, struct DVattribute *attr);
int drvMemDeviceOpen(uint32_t devid, int devfd);
int drvMemDeviceClose(uint32_t devid);
int drvGetDevNum(uint32_t *numDev);

#ifdef __cplusplus
}
#endif
#endif
