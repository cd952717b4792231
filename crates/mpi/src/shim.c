/* The calls of MPI that Partita makes. Handles, constants and sizes of MPI differ between libraries, and only their own
 * header knows them: this file is compiled with the mpicc of the library. */
#include <mpi.h>
#include <stdlib.h>

/* The most bytes of one call: counts of MPI are of type int. */
#define MOST ((size_t)1 << 30)

static MPI_Comm world;

/* A message, in parts. */
struct message {
    int is_sent;
    int count;
    MPI_Request parts[];
};

/* 0, or 1 if the library cannot be called from several threads. */
int partita_mpi_start(int *index, int *count, int *tags) {
    int level, found, *bound;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (level < MPI_THREAD_SERIALIZED)
        return 1;
    MPI_Comm_dup(MPI_COMM_WORLD, &world);
    MPI_Comm_rank(world, index);
    MPI_Comm_size(world, count);
    MPI_Comm_get_attr(world, MPI_TAG_UB, &bound, &found);
    *tags = found ? *bound : 32767;
    return 0;
}

static struct message *message(int is_sent, size_t bytes) {
    int count = bytes == 0 ? 1 : (int)((bytes + MOST - 1) / MOST);
    struct message *result = malloc(sizeof *result + sizeof(MPI_Request) * (size_t)count);
    if (result == NULL)
        abort();
    result->is_sent = is_sent;
    result->count = count;
    return result;
}

static int part(size_t bytes, int number) {
    size_t left = bytes - (size_t)number * MOST;
    return (int)(left < MOST ? left : MOST);
}

void *partita_mpi_send(const char *bytes, size_t size, int process, int tag) {
    struct message *sent = message(1, size);
    for (int i = 0; i < sent->count; i++)
        MPI_Isend(bytes + (size_t)i * MOST, part(size, i), MPI_BYTE, process, tag, world, &sent->parts[i]);
    return sent;
}

void *partita_mpi_receive(char *bytes, size_t size, int process, int tag) {
    struct message *received = message(0, size);
    for (int i = 0; i < received->count; i++)
        MPI_Irecv(bytes + (size_t)i * MOST, part(size, i), MPI_BYTE, process, tag, world, &received->parts[i]);
    return received;
}

int partita_mpi_test(void *handle) {
    struct message *message = handle;
    int is_done;
    MPI_Testall(message->count, message->parts, &is_done, MPI_STATUSES_IGNORE);
    if (is_done)
        free(message);
    return is_done;
}

void partita_mpi_cancel(void *handle) {
    struct message *message = handle;
    for (int i = 0; i < message->count; i++) {
        if (message->parts[i] == MPI_REQUEST_NULL)
            continue;
        if (message->is_sent) {
            MPI_Request_free(&message->parts[i]);
        } else {
            MPI_Cancel(&message->parts[i]);
            MPI_Wait(&message->parts[i], MPI_STATUS_IGNORE);
        }
    }
    free(message);
}

void partita_mpi_finish(void) { MPI_Finalize(); }
