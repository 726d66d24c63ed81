/* cuda_types.h - the few types and numbers of CUDA's driver API, of cuBLASLt and NCCL that we use,
 * declared here so that the runtime is built without CUDA's headers.
 *
 * The libraries keep these numbers stable within their sonames. Names are CUDA's, shortened.
 */
#ifndef INF_RUNTIME_CUDA_TYPES_H
#define INF_RUNTIME_CUDA_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* --- the driver: cuda.h --- */

typedef int CuResult;
typedef int CuDevice;
typedef uint64_t CuAddress;
typedef struct CuContextObject *CuContext;
typedef struct CuModuleObject *CuModule;
typedef struct CuFunctionObject *CuFunction;
typedef struct CuStreamObject *CuStream;
typedef struct CuEventObject *CuEvent;
typedef struct CuGraphObject *CuGraph;
typedef struct CuGraphExecObject *CuGraphExec;
typedef struct CuGraphNodeObject *CuNode;

enum {
    CU_SUCCESS = 0,
    CU_ERROR_OUT_OF_MEMORY = 2,
    CU_ERROR_NO_DEVICE = 100,
    CU_ERROR_INVALID_IMAGE = 200,
    CU_ERROR_NO_BINARY_FOR_GPU = 209,
    CU_ERROR_UNSUPPORTED_PTX_VERSION = 222,
};

enum {
    CU_ATTRIBUTE_CLOCK_RATE_KHZ = 13,
    CU_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_ATTRIBUTE_CAPABILITY_MAJOR = 75,
    CU_ATTRIBUTE_CAPABILITY_MINOR = 76,
    CU_ATTRIBUTE_BLOCK_SHARED_BYTES_MOST = 97, /* for those that ask */
};

enum {
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DEFAULT = 0,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_CAPTURE_THREAD_LOCAL = 1,
    CU_CAPTURE_FOLLOW_THESE = 1,
    CU_HOST_ALLOC_MAPPED = 2,
    CU_FUNCTION_DYNAMIC_SHARED_BYTES = 8,
    CU_JIT_ERROR_LOG_BUFFER = 5,
    CU_JIT_ERROR_LOG_BUFFER_BYTES = 6,
};

/* --- cuBLASLt: cublasLt.h, cublas_api.h, library_types.h --- */

typedef int LtStatus;
typedef struct LtContextObject *LtHandle;
typedef struct LtDescObject *LtDesc;
typedef struct LtLayoutObject *LtLayout;
typedef struct LtPreferenceObject *LtPreference;

typedef struct LtAlgorithm {
    uint64_t data[8];
} LtAlgorithm;

typedef struct LtHeuristic {
    LtAlgorithm algorithm;
    size_t workspace_bytes;
    LtStatus state;
    float waves;
    int reserved[4];
} LtHeuristic;

enum {
    LT_TYPE_F32 = 0,
    LT_TYPE_BF16 = 14,
    LT_COMPUTE_F32 = 68,
    LT_COMPUTE_TF32 = 77,
    LT_OP_N = 0,
    LT_OP_T = 1,
};

enum {
    LT_DESC_TRANSPOSE_A = 3,
    LT_DESC_TRANSPOSE_B = 4,
    LT_DESC_EPILOGUE = 7,
    LT_DESC_BIAS_POINTER = 8,
};

enum {
    LT_LAYOUT_BATCH_COUNT = 5,
    LT_LAYOUT_BATCH_STRIDE = 6,
};

enum {
    LT_PREFER_WORKSPACE_BYTES = 1,
    LT_PREFER_REDUCTIONS = 3,
    LT_PREFER_ALIGNMENT_A = 5,
    LT_PREFER_ALIGNMENT_B = 6,
    LT_PREFER_ALIGNMENT_C = 7,
    LT_PREFER_ALIGNMENT_D = 8,
};

/* A product split along k may add its parts in the workspace, in f32 and in a fixed order; never
 * in place. */
enum { LT_REDUCTIONS_IN_WORKSPACE = 2 };

enum {
    LT_EPILOGUE_DEFAULT = 1,
    LT_EPILOGUE_RELU = 2,
    LT_EPILOGUE_BIAS = 4,
    LT_EPILOGUE_RELU_BIAS = 6,
    LT_EPILOGUE_GELU = 32,
    LT_EPILOGUE_GELU_BIAS = 36,
};

/* --- NCCL: nccl.h --- */

typedef int NcclResult;
typedef struct NcclCommObject *NcclComm;

typedef struct NcclId {
    char bytes[128];
} NcclId;

enum { NCCL_SUCCESS = 0, NCCL_TYPE_U8 = 1, NCCL_TYPE_F32 = 7, NCCL_SUM = 0 };

/* As of 2.17; later versions have more behind it, and take what they do not get as not given. */
typedef struct NcclConfig {
    size_t size;
    uint32_t magic, version;
    int32_t blocking, cluster, blocks_least, blocks_most;
    const char *net;
} NcclConfig;

#define NCCL_CONFIG_MAGIC 0xcafebeefu
enum { NCCL_CONFIG_VERSION = 21700, NCCL_NOT_GIVEN = INT32_MIN };

#endif
