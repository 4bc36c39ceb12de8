/* A libnvidia-ml.so.1 that answers from a capture, so that the real binding runs without a GPU.
 *
 * The capture (environment variable NVML_REPLAY) has one answer per line, `KEY CODE VALUE`, where
 * KEY is a function's name, after `INDEX.` for a device's. A function that the capture does not
 * name is not supported. CODE -1 never returns, as a sick GPU's driver may. Sessions are written
 * down in CAPTURE.sessions, so that a test can see that each one ended.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOT_SUPPORTED 3
#define LINE_BYTES 512

typedef struct {
	char legacy_bus_id[16];
	unsigned int domain, bus, device, ids, subsystem;
	char bus_id[32];
} pci_info;

typedef struct {
	unsigned long long total, free, used;
} memory_info;

/* The capture's answer: the code, and the value in `value` (LINE_BYTES, may be NULL). */
static int answer(long device, const char *function, char *value)
{
	char key[128], line[LINE_BYTES];
	int code = NOT_SUPPORTED;
	const char *path = getenv("NVML_REPLAY");
	FILE *capture = path ? fopen(path, "r") : NULL;

	if (!capture)
		abort();
	if (device < 0)
		snprintf(key, sizeof key, "%s ", function);
	else
		snprintf(key, sizeof key, "%ld.%s ", device, function);
	while (fgets(line, sizeof line, capture)) {
		char *rest;
		if (strncmp(line, key, strlen(key)))
			continue;
		code = strtol(line + strlen(key), &rest, 10);
		rest[strcspn(rest, "\n")] = '\0';
		if (value)
			snprintf(value, LINE_BYTES, "%s", *rest == ' ' ? rest + 1 : rest);
		break;
	}
	fclose(capture);
	while (code == -1)
		pause();
	return code;
}

static int text(long device, const char *function, char *to, unsigned int length)
{
	char value[LINE_BYTES] = "";
	int code = answer(device, function, value);
	if (!code)
		snprintf(to, length, "%s", value);
	return code;
}

static int number(long device, const char *function, unsigned long long *to)
{
	char value[LINE_BYTES] = "";
	int code = answer(device, function, value);
	if (!code)
		*to = strtoull(value, NULL, 10);
	return code;
}

static void write_down(const char *what)
{
	char path[LINE_BYTES];
	FILE *sessions;

	snprintf(path, sizeof path, "%s.sessions", getenv("NVML_REPLAY"));
	sessions = fopen(path, "a");
	if (!sessions)
		abort();
	fprintf(sessions, "%s\n", what);
	fclose(sessions);
}

/* A handle is the index plus one: NULL is no device. */
static long index_of(void *handle)
{
	return (long)handle - 1;
}

int nvmlInitWithFlags(unsigned int flags)
{
	int code = answer(-1, __func__, NULL);
	(void)flags;
	if (!code)
		write_down("opened");
	return code;
}

int nvmlShutdown(void)
{
	write_down("closed");
	return 0;
}

const char *nvmlErrorString(int code)
{
	return code == 0 ? "Success" : "another error";
}

int nvmlSystemGetDriverVersion(char *to, unsigned int length)
{
	return text(-1, __func__, to, length);
}

int nvmlSystemGetCudaDriverVersion_v2(int *to)
{
	unsigned long long found = 0;
	int code = number(-1, __func__, &found);
	if (!code)
		*to = (int)found;
	return code;
}

int nvmlDeviceGetCount_v2(unsigned int *to)
{
	unsigned long long found = 0;
	int code = number(-1, __func__, &found);
	if (!code)
		*to = (unsigned int)found;
	return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle)
{
	int code = answer(index, __func__, NULL);
	if (!code)
		*handle = (void *)((long)index + 1);
	return code;
}

int nvmlDeviceGetPciInfo_v3(void *handle, pci_info *to)
{
	memset(to, 0, sizeof *to);
	return text(index_of(handle), __func__, to->bus_id, sizeof to->bus_id);
}

int nvmlDeviceGetName(void *handle, char *to, unsigned int length)
{
	return text(index_of(handle), __func__, to, length);
}

int nvmlDeviceGetUUID(void *handle, char *to, unsigned int length)
{
	return text(index_of(handle), __func__, to, length);
}

int nvmlDeviceGetMemoryInfo(void *handle, memory_info *to)
{
	memset(to, 0, sizeof *to);
	return number(index_of(handle), __func__, &to->total);
}
