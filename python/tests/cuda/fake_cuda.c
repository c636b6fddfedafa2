/* Stand-in for the library of the CUDA driver, for hosts without a GPU.
 *
 * Device memory is host memory. Copies run at once, so every event has happened. Memory for other
 * processes is a file in /dev/shm, whose name is the handle. FAKE_CUDA_LOG names a file that gets one
 * line per call; FAKE_CUDA_NO_IPC makes the opening of memory fail, as in a container. */

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int R;
typedef uint64_t P;
typedef struct { char reserved[64]; } H;

static R said(const char *name, P value) {
    const char *path = getenv("FAKE_CUDA_LOG");
    if (path) {
        char line[128];
        int length = snprintf(line, sizeof line, "%s %lu\n", name, (unsigned long)value);
        int file = open(path, O_WRONLY | O_APPEND | O_CREAT, 0600);
        if (file >= 0) {
            if (write(file, line, length)) {}
            close(file);
        }
    }
    return 0;
}

/* Files of this process, by address. */
static struct { P start; size_t size; char name[64]; } all[256];
static int used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

R cuInit(unsigned flags) { return said("cuInit", flags); }
R cuDriverGetVersion(int *version) {
    const char *wanted = getenv("FAKE_CUDA_VERSION");
    *version = wanted ? atoi(wanted) : 13020;
    return 0;
}
R cuGetErrorName(R error, const char **name) {
    *name = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : error == 201 ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_UNKNOWN";
    return 0;
}
R cuDeviceGetCount(int *count) { *count = 4; return 0; }
R cuDeviceGet(int *device, int index) { *device = index; return 0; }
R cuDevicePrimaryCtxRetain(P *context, int device) { *context = 100 + device; return said("cuDevicePrimaryCtxRetain", device); }
R cuCtxPushCurrent_v2(P context) { (void)context; return 0; }
R cuCtxPopCurrent_v2(P *context) { *context = 0; return 0; }
R cuMemPoolCreate(P *pool, const void *wanted) { (void)wanted; *pool = 1; return 0; }
R cuMemPoolSetAttribute(P pool, int attribute, void *value) { (void)pool; (void)attribute; (void)value; return 0; }
R cuStreamCreate(P *stream, unsigned flags) {
    (void)flags;
    static P next = 1000;
    *stream = __sync_add_and_fetch(&next, 1);
    return 0;
}
R cuStreamWaitEvent(P stream, P event, unsigned flags) { (void)event; (void)flags; return said("cuStreamWaitEvent", stream); }
R cuEventCreate(P *event, unsigned flags) {
    (void)flags;
    static P next = 5000;
    *event = __sync_add_and_fetch(&next, 1);
    return 0;
}
R cuEventRecord(P event, P stream) {
    (void)event;
    return stream == 3 ? 201 : said("cuEventRecord", stream);
}
R cuEventQuery(P event) { (void)event; return 0; }
R cuEventSynchronize(P event) { return said("cuEventSynchronize", event); }
R cuEventDestroy_v2(P event) { (void)event; return 0; }
R cuMemAllocFromPoolAsync(P *pointer, size_t length, P pool, P stream) {
    (void)pool; (void)stream;
    if (length > (size_t)1 << 30) return 2;
    *pointer = (P)aligned_alloc(256, (length + 511) & ~(size_t)255);
    return said("cuMemAllocFromPoolAsync", length);
}
R cuMemFreeAsync(P pointer, P stream) { (void)stream; free((void *)pointer); return said("cuMemFreeAsync", 0); }
R cuMemHostAlloc(P *pointer, size_t length, unsigned flags) { (void)flags; *pointer = (P)malloc(length); return said("cuMemHostAlloc", length); }
R cuMemFreeHost(P pointer) { free((void *)pointer); return 0; }
R cuMemcpyAsync(P to, P from, size_t length, P stream) {
    memcpy((void *)to, (void *)from, length);
    (void)stream;
    return said("cuMemcpyAsync", length);
}
R cuMemAlloc_v2(P *pointer, size_t length) {
    pthread_mutex_lock(&lock);
    int slot = used++ % 256;
    snprintf(all[slot].name, 64, "/dev/shm/fake-cuda-%d-%d", getpid(), used);
    int file = open(all[slot].name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 || ftruncate(file, length)) return 2;
    *pointer = all[slot].start = (P)mmap(0, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    all[slot].size = length;
    close(file);
    pthread_mutex_unlock(&lock);
    return said("cuMemAlloc", length);
}
static int found(P pointer) {
    for (int slot = 0; slot < 256; slot++)
        if (all[slot].size && pointer >= all[slot].start && pointer < all[slot].start + all[slot].size) return slot;
    return -1;
}
R cuMemFree_v2(P pointer) {
    int slot = found(pointer);
    if (slot < 0) return 1;
    munmap((void *)all[slot].start, all[slot].size);
    unlink(all[slot].name);
    all[slot].size = 0;
    return said("cuMemFree", 0);
}
R cuIpcGetMemHandle(H *handle, P pointer) {
    int slot = found(pointer);
    if (slot < 0) return 1;
    memcpy(handle->reserved, all[slot].name, 64);
    return 0;
}
R cuIpcOpenMemHandle_v2(P *pointer, H handle, unsigned flags) {
    (void)flags;
    if (getenv("FAKE_CUDA_NO_IPC")) return 205;
    int file = open(handle.reserved, O_RDWR);
    if (file < 0) return 1;
    size_t length = lseek(file, 0, SEEK_END);
    pthread_mutex_lock(&lock);
    int slot = used++ % 256;
    *pointer = all[slot].start = (P)mmap(0, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    all[slot].size = length;
    all[slot].name[0] = 0;
    pthread_mutex_unlock(&lock);
    close(file);
    return said("cuIpcOpenMemHandle", length);
}
R cuIpcCloseMemHandle(P pointer) {
    int slot = found(pointer);
    if (slot < 0) return 1;
    munmap((void *)all[slot].start, all[slot].size);
    all[slot].size = 0;
    return said("cuIpcCloseMemHandle", 0);
}
R cuMemGetAddressRange_v2(P *start, size_t *size, P pointer) {
    int slot = found(pointer);
    if (slot < 0) return 1;
    *start = all[slot].start;
    *size = all[slot].size;
    return 0;
}
R cuIpcGetEventHandle(H *handle, P event) { (void)event; memset(handle, 0, sizeof *handle); return 0; }
R cuIpcOpenEventHandle(P *event, H handle) { (void)handle; *event = 4999; return 0; }
